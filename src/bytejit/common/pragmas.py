"""Lines of C++ that codegen writes, and by which kernels are built."""

FAULTS_IN_LANES = "#pragma omp simd reduction(| : fault)"  # a loop in lanes, each of which may record a fault
