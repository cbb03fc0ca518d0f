"""The user's own models as something that can be run piece by piece: torch modules and ONNX
models.
"""
