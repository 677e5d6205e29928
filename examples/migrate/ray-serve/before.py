"""A Ray Serve deployment that batches: digits, classified by ONNX Runtime."""

import numpy
import onnxruntime
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=2, max_ongoing_requests=64, max_queued_requests=256)
class Digits:
    def __init__(self) -> None:
        self.session = onnxruntime.InferenceSession("digits.onnx")

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.002)
    async def classify(self, images: list[numpy.ndarray]) -> list[int]:
        (logits,) = self.session.run(["logits"], {"image": numpy.stack(images)})
        return [int(label) for label in logits.argmax(axis=1)]

    async def __call__(self, request: Request) -> int:
        pixels = numpy.array(await request.json(), dtype=numpy.float32)
        return await self.classify(pixels.reshape(1, 8, 8))


app = Digits.bind()
