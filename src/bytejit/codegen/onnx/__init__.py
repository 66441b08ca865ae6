"""From ATen graphs to ONNX models: rows of operators (`table.py`), what rows write with (`writer.py`), the model (`model.py`)."""
