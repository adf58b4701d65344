"""Wire formats: the CRI interface and the control protocol. Generated code (``*_pb2.py``) is made by ``make proto``."""
