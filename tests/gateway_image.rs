//! Images as inputs of a gateway: decoded while their tasks queue. What a real network sees needs `ORT_DYLIB_PATH`.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "support/grpc.rs"]
mod grpc;
mod support;

use std::path::Path;

use grpc::{Grpc, InferRequest, InferResponse, Tensor};
use prost::Message as _;
use serde_json::Value;
use support::http::Http;
use support::{Cluster, Folder, run};

const PATH: &str = "/v2/models/digits/infer";
const IMAGE: &str = "Content-Type: image/jpeg\r\n";

fn digits(file: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits").join(file).display().to_string()
}

/// A request over gRPC whose only input is this element.
fn message(model: &str, element: &[u8]) -> Vec<u8> {
    let input = Tensor { name: "image".into(), datatype: "BYTES".into(), shape: vec![1] };
    let length = u32::try_from(element.len()).unwrap().to_le_bytes();
    let raw = vec![[&length, element].concat()];
    InferRequest { model_name: model.into(), inputs: vec![input], raw, ..Default::default() }
        .encode_to_vec()
}

fn cluster(test: &str) -> Cluster {
    let text = format!(
        "[[model]]\nname = \"digits\"\nfile = \"{}\"\nslo_ms = 20000\n[[model]]\nname = \"plain\"\n\
         alpha_ms = 1\nbeta_ms = 5\nslo_ms = 20000\ninput_bytes = 8\n[[backend]]\nname = \"cpu\"\n\
         [[gateway.image]]\nmodel = \"digits\"\n",
        digits("digits.onnx")
    );
    Cluster::of(Folder::new(test), &text)
}

#[test]
fn what_is_no_image_or_for_no_such_model_is_refused_and_its_slot_is_free_again() {
    let cluster = cluster("gateway-image-refused");
    let (_gateway, addr) = cluster.gateway(&[]);
    let mut http = Http::connect(&addr);
    let jpeg = std::fs::read(digits("image.jpg")).unwrap();
    let other = http.post("/v2/models/plain/infer", IMAGE, &jpeg);
    assert_eq!(other.status, 415, "{other:?}");
    assert!(other.error().contains("[[gateway.image]]"), "{other:?}");
    let (second, _) = cluster.gateway(&["--grpc", "127.0.0.1:0"]);
    let grpc = Grpc::connect(&second.line("grpc "));
    let other = grpc.call("ModelInfer", None, &message("plain", &jpeg));
    assert_eq!(other.code(), 3, "a model without images takes no BYTES: {other:?}");
    // Without a backend a good image's task ends before or after it is decoded.
    let unserved = http.post(PATH, IMAGE, &jpeg);
    assert_eq!(unserved.status, 503, "{unserved:?}");
    let unserved = grpc.call("ModelInfer", None, &message("digits", &jpeg));
    assert_eq!(unserved.code(), 14, "{unserved:?}");
    // More than there are slots.
    for _ in 0..300 {
        let broken = http.post(PATH, IMAGE, &jpeg[..jpeg.len() / 3]);
        assert!([400, 503].contains(&broken.status), "{broken:?}");
    }
}

#[test]
fn a_network_sees_the_image_that_was_sent() {
    if std::env::var_os("ORT_DYLIB_PATH").is_none_or(|path| path.is_empty()) {
        eprintln!("SKIPPED: ORT_DYLIB_PATH is not set; export it: $(./x onnxruntime)");
        return;
    }
    let cluster = cluster("gateway-image");
    let _backend = cluster.backend("cpu");
    let (_gateway, addr) = cluster.gateway(&[]);
    let mut http = Http::connect(&addr);
    let jpeg = std::fs::read(digits("image.jpg")).unwrap();
    for _ in 0..3 {
        let answer = http.post(PATH, IMAGE, &jpeg);
        assert_eq!(answer.status, 200, "{answer:?}");
        let logits = answer.json()["outputs"][0]["data"].as_array().unwrap().clone();
        let logits: Vec<f64> = logits.iter().map(|logit| logit.as_f64().unwrap()).collect();
        let largest = (0..10).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        assert_eq!(largest, Some(7), "the first held-out image is a seven: {logits:?}");
    }
    // A backend may have pulled some before they were decoded.
    let status = run(&["status", "--json", "--scheduler", cluster.addr()]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let model = &status["models"][0];
    assert!(model["mean_batch"].is_number() && model["bad_rate"] == 0.0, "{model}");
    let (gateway, _) = cluster.gateway(&["--grpc", "127.0.0.1:0"]);
    let grpc = Grpc::connect(&gateway.line("grpc "));
    let ended = grpc.call("ModelInfer", None, &message("digits", &jpeg));
    assert_eq!(ended.code(), 0, "{ended:?}");
    let answer = InferResponse::decode(ended.message()).unwrap();
    assert_eq!((&answer.outputs[0].shape[..], answer.raw[0].len()), (&[1, 10][..], 40));
    let floats = answer.raw[0].chunks_exact(4).map(|f| f32::from_le_bytes(f.try_into().unwrap()));
    let floats: Vec<f32> = floats.collect();
    assert_eq!((0..10).max_by(|&a, &b| floats[a].total_cmp(&floats[b])), Some(7), "{floats:?}");
    let broken = grpc.call("ModelInfer", None, &message("digits", &jpeg[..100]));
    assert_eq!(broken.code(), 3, "{broken:?}");
    assert!(broken.words().contains("no JPEG"), "{broken:?}");
    let broken = http.post(PATH, IMAGE, &jpeg[..100]);
    assert_eq!(broken.status, 400, "{broken:?}");
    assert!(broken.error().contains("no JPEG"), "{broken:?}");
}
