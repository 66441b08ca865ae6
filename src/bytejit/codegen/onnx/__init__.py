"""From ATen graphs to ONNX models: `table.py` has a row an operator, `writer.py` what rows write with, `model.py` the model."""
