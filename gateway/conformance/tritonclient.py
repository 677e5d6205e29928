"""Calls a gateway with an unmodified Triton client: HTTP and gRPC, plain and asyncio.

Usage: python tritonclient.py ADDR MODEL CONTROL

MODEL has one input and one output of fixed extents. CONTROL is the address of a gateway of the same cluster that may load
and unload models. Prints a line for each check; exit status 1 if one fails. `./x oip`
makes the environment, starts a cluster and runs this (`gateway/conformance/run.sh`).
"""

import asyncio
import os
import pathlib
import queue
import sys

# This file has the package's name.
sys.path.pop(0)

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples"
failed = []


def check(what, is_so):
    print(("ok      " if is_so else "FAILED  ") + what, flush=True)
    if not is_so:
        failed.append(what)


def refused(what, call, words, status):
    """The call must end with this status and these words."""
    try:
        call()
    except InferenceServerException as error:
        said = f"{error.status()} {error.message()}"
        check(f"{what}: {said}", status in str(error.status()) and words in str(error.message()))
    else:
        check(f"{what}: was not refused", False)


class Model:
    """What the gateway says of a model, and inputs for it."""

    def __init__(self, name, metadata):
        self.name = name
        self.input, self.output = metadata["inputs"][0], metadata["outputs"][0]
        self.dtype = triton_to_np_dtype(self.input["datatype"])
        self.out_dtype = triton_to_np_dtype(self.output["datatype"])

    def rows(self, batch, seed=1):
        """Whole numbers, which every type can hold."""
        shape = [batch, *self.input["shape"][1:]]
        return np.random.default_rng(seed).integers(0, 16, shape).astype(self.dtype)

    def infer_input(self, rows, binary):
        tensor = http.InferInput(self.input["name"], rows.shape, self.input["datatype"])
        return tensor.set_data_from_numpy(rows, binary_data=binary)

    def tensor(self, module, shape=None):
        return module.InferInput(self.input["name"], shape or [3, *self.input["shape"][1:]], self.input["datatype"])

    def grpc_input(self, rows):
        tensor = grpc.InferInput(self.input["name"], rows.shape, self.input["datatype"])
        return tensor.set_data_from_numpy(rows)

    def answer(self, result):
        return result.as_numpy(self.output["name"])


def server(client):
    check("live", client.is_server_live())
    check("ready", client.is_server_ready())
    said = client.get_server_metadata()
    check(f"metadata: {said['name']} {said['version']}", "binary_tensor_data" in said["extensions"])
    index = client.get_model_repository_index()
    check("repository index", all(model["state"] == "READY" for model in index) and index)
    return index


def infer(client, model):
    one = model.rows(1)
    expected = model.answer(client.infer(model.name, [model.infer_input(one, False)]))
    check(f"JSON: {expected.dtype} {expected.shape}", expected.dtype == model.out_dtype)
    for binary_in in (False, True):
        for binary_out in (False, True):
            output = http.InferRequestedOutput(model.output["name"], binary_data=binary_out)
            inputs = [model.infer_input(one, binary_in)]
            result = client.infer(model.name, inputs, outputs=[output], request_id="seven")
            same = np.allclose(model.answer(result), expected, atol=1e-4)
            check(f"binary in {binary_in}, out {binary_out}", same and result.get_response()["id"] == "seven")
    many = model.rows(8)
    batch = model.answer(client.infer(model.name, [model.infer_input(many, True)]))
    alone = [model.answer(client.infer(model.name, [model.infer_input(row[None], True)])) for row in many]
    check("a batch is its rows", np.allclose(batch, np.concatenate(alone), atol=1e-4))
    for algorithm in ("gzip", "deflate"):
        zipped = client.infer(
            model.name,
            [model.infer_input(many, True)],
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
        check(f"compression {algorithm}", np.allclose(model.answer(zipped), batch, atol=1e-4))
    outstanding = [client.async_infer(model.name, [model.infer_input(one, True)]) for _ in range(8)]
    same = [np.allclose(model.answer(each.get_result()), expected, atol=1e-4) for each in outstanding]
    check("async_infer", all(same))


def refusals(client, model):
    one = [model.infer_input(model.rows(1), True)]
    refused("a time-out that is too short", lambda: client.infer(model.name, one, timeout=1), "dropped: deadline", "504")
    refused("an unknown model", lambda: client.infer("no such model", one), "no model is called", "404")
    refused("another version", lambda: client.infer(model.name, one, model_version="2"), "version", "404")
    wrong = http.InferInput("no_such_input", one[0].shape(), one[0].datatype())
    wrong.set_data_from_numpy(model.rows(1))
    refused("another input", lambda: client.infer(model.name, [wrong]), "has no input", "400")
    refused("a sequence", lambda: client.infer(model.name, one, sequence_id=7), "no sequences", "501")
    refused("loading", lambda: client.load_model(model.name), "--model-control", "501")
    check("client goes on", client.is_model_ready(model.name))


def statistics(client, model):
    before = client.get_inference_statistics(model.name)["model_stats"][0]
    client.infer(model.name, [model.infer_input(model.rows(4), True)])
    after = client.get_inference_statistics(model.name)["model_stats"][0]
    tasks = after["inference_count"] - before["inference_count"]
    check(f"statistics: {tasks} tasks of 1 request", tasks == 4)
    config = client.get_model_config(model.name)
    check(f"config: max_batch_size {config['max_batch_size']}", config["input"][0]["name"] == model.input["name"])


async def asynchronous(url, model):
    async with http_aio.InferenceServerClient(url) as client:
        check("asyncio: ready", await client.is_server_ready())
        inputs = [model.infer_input(model.rows(2), True)]
        results = await asyncio.gather(*(client.infer(model.name, inputs) for _ in range(16)))
        answers = [model.answer(result) for result in results]
        check("asyncio: 16 at a time", all(np.allclose(answer, answers[0], atol=1e-4) for answer in answers))
        hung_up = asyncio.create_task(client.infer(model.name, inputs))
        await asyncio.sleep(0)
        hung_up.cancel()
        check("asyncio: goes on after a cancelled call", await client.is_model_ready(model.name))


def grpc_calls(client, model, over_http):
    check("gRPC: live", client.is_server_live())
    check("gRPC: ready", client.is_server_ready() and client.is_model_ready(model.name))
    check("gRPC: an unknown model is not ready", not client.is_model_ready("no such model"))
    check("gRPC: metadata", "binary_tensor_data" in client.get_server_metadata().extensions)
    said = client.get_model_metadata(model.name)
    check("gRPC: model metadata", list(said.inputs[0].shape) == list(model.input["shape"]))
    config = client.get_model_config(model.name, as_json=True)["config"]
    check("gRPC: config", config["name"] == model.name and config["max_batch_size"] == over_http.get_model_config(model.name)["max_batch_size"])
    index = client.get_model_repository_index(as_json=True)["models"]
    check("gRPC: repository index", index == [{k: v for k, v in m.items() if v} for m in over_http.get_model_repository_index()])
    before = client.get_inference_statistics(model.name).model_stats[0].inference_count
    many = model.rows(8)
    expected = model.answer(over_http.infer(model.name, [model.infer_input(many, True)]))
    for algorithm in (None, "gzip", "deflate"):
        result = client.infer(
            model.name, [model.grpc_input(many)], request_id="seven", client_timeout=5, compression_algorithm=algorithm
        )
        same = np.allclose(model.answer(result), expected, atol=1e-4)
        check(f"gRPC: the answer is that over HTTP, compression {algorithm}", same and result.get_response().id == "seven")
    outputs = [grpc.InferRequestedOutput(model.output["name"])]
    result = client.infer(model.name, [model.grpc_input(many)], outputs=outputs, timeout=800_000)
    check("gRPC: outputs asked for, time-out", np.allclose(model.answer(result), expected, atol=1e-4))
    after = client.get_inference_statistics(model.name).model_stats[0].inference_count
    check(f"gRPC: statistics: {after - before} tasks", after - before == 40)
    got = queue.Queue()
    for _ in range(8):
        client.async_infer(model.name, [model.grpc_input(many)], lambda result, error: got.put((result, error)))
    answers = [got.get(timeout=30) for _ in range(8)]
    check("gRPC: async_infer", all(error is None for _, error in answers))


def grpc_refusals(client, model):
    one = [model.grpc_input(model.rows(1))]
    code = "StatusCode."
    refused("gRPC: a time-out that is too short", lambda: client.infer(model.name, one, timeout=1), "dropped: deadline", code + "DEADLINE_EXCEEDED")
    refused("gRPC: a client that gives up soon", lambda: client.infer(model.name, one, client_timeout=0.002), "", code + "DEADLINE_EXCEEDED")
    refused("gRPC: an unknown model", lambda: client.infer("no such model", one), "no model is called", code + "NOT_FOUND")
    refused("gRPC: another version", lambda: client.infer(model.name, one, model_version="2"), "version", code + "NOT_FOUND")
    wrong = grpc.InferInput("no_such_input", one[0].shape(), one[0].datatype())
    wrong.set_data_from_numpy(model.rows(1))
    refused("gRPC: another input", lambda: client.infer(model.name, [wrong]), "has no input", code + "INVALID_ARGUMENT")
    refused("gRPC: loading", lambda: client.load_model(model.name), "--model-control", code + "UNIMPLEMENTED")
    refused("gRPC: log settings", lambda: client.get_log_settings(), "has no LogSettings", code + "UNIMPLEMENTED")


def grpc_image(client, model):
    """An image as a BYTES tensor, as Triton's own image clients send it."""
    jpeg = (EXAMPLES / "digits" / "image.jpg").read_bytes()
    for shape in ([1], [1, 1]):
        image = grpc.InferInput(model.input["name"], shape, "BYTES")
        image.set_data_from_numpy(np.array([jpeg], dtype=object).reshape(shape))
        logits = client.infer(model.name, [image]).as_numpy(model.output["name"])
        check(f"gRPC: a JPEG of shape {shape} is a seven", logits.shape == (1, 10) and logits.argmax() == 7)
    image.set_data_from_numpy(np.array([jpeg[:100]], dtype=object).reshape(shape))
    try:
        client.infer(model.name, [image])
    except InferenceServerException as error:
        check(f"gRPC: half an image: {error.message()}", error.status() == "StatusCode.INVALID_ARGUMENT" and "JPEG" in error.message())
    else:
        check("gRPC: half an image is refused", False)


def grpc_stream(client, model):
    got = queue.Queue()
    client.start_stream(lambda result, error: got.put((result, error)))
    for at in range(16):
        name = "no such model" if at == 7 else model.name
        client.async_stream_infer(name, [model.grpc_input(model.rows(2, at))], request_id=str(at))
    answers = [got.get(timeout=30) for _ in range(16)]
    client.stop_stream()
    errors = [error for _, error in answers if error is not None]
    ids = {result.get_response().id for result, error in answers if error is None}
    said = errors[0].message() if errors else ""
    check(f"gRPC: a stream with one bad request among good ones: {said}", len(errors) == 1 and len(ids) == 15)


async def grpc_asynchronous(url, model):
    async with grpc_aio.InferenceServerClient(url) as client:
        check("gRPC asyncio: ready", await client.is_server_ready())
        inputs = [model.grpc_input(model.rows(2))]
        results = await asyncio.gather(*(client.infer(model.name, inputs) for _ in range(16)))
        answers = [model.answer(result) for result in results]
        check("gRPC asyncio: 16 at a time", all(np.allclose(answer, answers[0], atol=1e-4) for answer in answers))

        async def requests():
            for at in range(8):
                yield {"model_name": model.name, "inputs": inputs, "request_id": str(at)}

        streamed = [each async for each in client.stream_infer(requests())]
        check("gRPC asyncio: stream", len(streamed) == 8 and all(error is None for _, error in streamed))


def shared_memory(client, model, module, prefix, regions):
    """Inputs and outputs of three rows in one object: the input's region is its beginning, the output's its end."""
    many = model.rows(3)
    expected = model.answer(client.infer(model.name, [model.tensor(module).set_data_from_numpy(many)]))
    key = f"/baton-oip-{os.getpid()}"
    memory = shm.create_shared_memory_region("all", key, many.nbytes + expected.nbytes)
    try:
        shm.set_shared_memory_region(memory, [many])
        client.unregister_system_shared_memory()
        client.register_system_shared_memory("in", key, many.nbytes)
        client.register_system_shared_memory("out", key, expected.nbytes, offset=many.nbytes)
        check(f"{prefix}shared memory: status", sorted(regions(client)) == ["in", "out"])
        tensor = model.tensor(module, many.shape)
        tensor.set_shared_memory("in", many.nbytes)
        output = module.InferRequestedOutput(model.output["name"])
        output.set_shared_memory("out", expected.nbytes)
        result = client.infer(model.name, [tensor], outputs=[output])
        answer = shm.get_contents_as_numpy(memory, model.out_dtype, list(expected.shape), offset=many.nbytes)
        said = result.get_output(model.output["name"])
        shape = list(said["shape"] if isinstance(said, dict) else said.shape)
        same = np.allclose(answer, expected, atol=1e-4) and shape == list(expected.shape)
        check(f"{prefix}shared memory: input and output", same)
        mixed = client.infer(model.name, [tensor])
        check(f"{prefix}shared memory: input only", np.allclose(model.answer(mixed), expected, atol=1e-4))
        client.register_system_shared_memory("in", key, many.nbytes)
        check(f"{prefix}shared memory: registered twice", sorted(regions(client)) == ["in", "out"])
        tensor.set_shared_memory("in", many.nbytes, offset=1)
        bad = "400" if prefix == "" else "INVALID_ARGUMENT"
        refused(f"{prefix}shared memory: past the end", lambda: client.infer(model.name, [tensor]), "not within", bad)
        client.unregister_system_shared_memory("in")
        gone = "404" if prefix == "" else "NOT_FOUND"
        refused(f"{prefix}shared memory: unregistered", lambda: client.infer(model.name, [tensor]), "registered as", gone)
    finally:
        client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(memory)
    refused(f"{prefix}shared memory: no object", lambda: client.register_system_shared_memory("in", key, 1), "names no", bad)


def repository(client, model, prefix, names):
    def state():
        return {name: state for name, state in names(client) if name == model.name}[model.name]

    inputs = [model.infer_input(model.rows(1), True) if prefix == "" else model.grpc_input(model.rows(1))]
    client.unload_model(model.name)
    check(f"{prefix}unloaded", not client.is_model_ready(model.name) and state() == "UNAVAILABLE")
    client.load_model(model.name)
    check(f"{prefix}loaded", client.is_model_ready(model.name) and state() == "READY")
    client.infer(model.name, inputs)
    try:
        client.load_model(model.name, config="{}")
    except InferenceServerException as error:
        check(f"{prefix}a configuration with a load: {error.message()}", "takes no parameter" in error.message())
    else:
        check(f"{prefix}a configuration with a load is refused", False)


def main(url, name, control):
    client = http.InferenceServerClient(url, concurrency=8)
    server(client)
    model = Model(name, client.get_model_metadata(name))
    infer(client, model)
    refusals(client, model)
    statistics(client, model)
    asyncio.run(asynchronous(url, model))
    over_grpc = grpc.InferenceServerClient(url)
    grpc_calls(over_grpc, model, client)
    grpc_refusals(over_grpc, model)
    grpc_stream(over_grpc, model)
    if name == "digits":
        grpc_image(over_grpc, model)
    asyncio.run(grpc_asynchronous(url, model))
    shared_memory(client, model, http, "", lambda client: [each["name"] for each in client.get_system_shared_memory_status()])
    shared_memory(over_grpc, model, grpc, "gRPC: ", lambda client: client.get_system_shared_memory_status().regions.keys())
    repository(
        http.InferenceServerClient(control),
        model,
        "",
        lambda client: [(each["name"], each["state"]) for each in client.get_model_repository_index()],
    )
    repository(
        grpc.InferenceServerClient(control),
        model,
        "gRPC: ",
        lambda client: [(each.name, each.state) for each in client.get_model_repository_index().models],
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
