//! A gateway among processes: what its clients get over gRPC for the ways in which a task can end.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "support/grpc.rs"]
mod grpc;
mod support;

use baton_backend::execute::checksum;
use baton_gateway::Limits;
use grpc::{Ended, Grpc, InferRequest, InferResponse, StreamResponse, Tensor};
use prost::Message as _;
use rustix::process::Signal;
use support::gateway::QUICK_AND_SLOW;
use support::prometheus::await_metric;
use support::{Cluster, Folder, Process};

/// A gateway of such a cluster, asked at its address for gRPC.
fn gateway(cluster: &Cluster) -> (Process, Grpc) {
    let more = ["--threads", "2", "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
    let (gateway, _) = cluster.gateway(&more);
    let grpc = Grpc::connect(&gateway.line("grpc "));
    (gateway, grpc)
}

/// A request with these rows of eight bytes.
fn rows(model: &str, rows: &[[u8; 8]]) -> Vec<u8> {
    let shape = vec![i64::try_from(rows.len()).unwrap(), 8];
    let input = Tensor { name: "input".into(), datatype: "UINT8".into(), shape };
    let raw = vec![rows.concat()];
    let request =
        InferRequest { model_name: model.into(), inputs: vec![input], raw, ..Default::default() };
    request.encode_to_vec()
}

/// The same request with an id.
fn with_id(id: &str, request: &[u8]) -> Vec<u8> {
    InferRequest { id: id.into(), ..InferRequest::decode(request).unwrap() }.encode_to_vec()
}

fn one(model: &str) -> Vec<u8> {
    rows(model, &[[7; 8]])
}

fn check(ended: &Ended, code: u8, outcome: Option<&str>, is_repeatable: bool) {
    assert_eq!((ended.code(), ended.trailer("baton-outcome")), (code, outcome), "{ended:?}");
    let pushback = ended.trailer("grpc-retry-pushback-ms");
    assert_eq!(
        pushback.is_some_and(|ms| ms.parse::<u64>().unwrap() > 0),
        is_repeatable,
        "{ended:?}"
    );
}

#[test]
fn rows_of_a_request_are_tasks_and_their_answers_one() {
    let cluster = Cluster::quick_and_slow("grpc-rows");
    let (_gateway, grpc) = gateway(&cluster);
    check(&grpc.call("ModelInfer", None, &one("quick")), 14, Some("dropped/no_backend"), true);
    let ready = |grpc: &Grpc| !grpc.call("ServerReady", None, &[]).message().is_empty();
    assert!(!ready(&grpc), "no model can be inferred");
    let _backend = cluster.backend("a");
    let given = [[1; 8], [2; 8], [3; 8]];
    let ended = grpc.call("ModelInfer", None, &rows("quick", &given));
    check(&ended, 0, Some("completed"), false);
    assert!(ready(&grpc));
    let answer = InferResponse::decode(ended.message()).unwrap();
    let expected: Vec<u8> = given.iter().flat_map(|row| checksum(row)).collect();
    assert_eq!((&answer.outputs[0].shape[..], &answer.raw), (&[3, 8][..], &vec![expected]));
}

#[test]
fn what_cannot_be_is_refused_with_its_code_and_words() {
    let cluster = Cluster::quick_and_slow("grpc-refused");
    let (_gateway, grpc) = gateway(&cluster);
    let _backend = cluster.backend("a");
    let late = grpc.call("ModelInfer", Some("2m"), &one("quick"));
    // On a busy host the time is over before the outcome is there.
    let ends = [
        (Some("dropped/deadline_passed"), "dropped: deadline_passed (its "),
        (None, "no answer within the 1 ms that were given"),
    ];
    let words = late.words();
    let is_one = |(outcome, text): &(Option<&str>, &str)| {
        late.trailer("baton-outcome") == *outcome && words.starts_with(text)
    };
    assert!(late.code() == 4 && ends.iter().any(is_one), "{late:?}");
    // It begins as every question about a model does.
    let second = InferRequest {
        model_version: "2".into(),
        ..InferRequest::decode(&one("quick")[..]).unwrap()
    };
    let second = second.encode_to_vec();
    let cases = [
        ("ModelInfer", None, one("other"), 5, "this gateway has: quick, slow"),
        ("ModelInfer", None, second.clone(), 5, "has version 1 only"),
        ("ModelReady", None, second.clone(), 5, "has version 1 only"),
        ("ModelMetadata", None, second, 5, "has version 1 only"),
        ("ModelInfer", None, vec![0xff; 20], 3, "no inference request"),
        ("ModelInfer", None, rows("quick", &[[0; 8]; 5]), 3, "give 1 to 4"),
        ("ModelInfer", Some("soon"), one("quick"), 3, "no time"),
        ("RepositoryModelLoad", None, vec![], 12, "baton model add"),
        ("LogSettings", None, vec![], 12, "has no LogSettings"),
        ("NoSuchCall", None, vec![], 12, "docs/gateway.md lists"),
    ];
    for (method, timeout, message, code, words) in cases {
        let ended = grpc.call(method, timeout, &message);
        check(&ended, code, None, false);
        assert!(ended.words().contains(words), "{ended:?}");
    }
    check(&grpc.call("ModelInfer", None, &one("quick")), 0, Some("completed"), false);
}

#[test]
fn a_call_that_is_given_up_frees_its_slots_and_one_too_many_comes_again_later() {
    let cluster = Cluster::quick_and_slow("grpc-slots");
    let (gateway, grpc) = gateway(&cluster);
    let metrics = gateway.metrics_addr();
    let _backend = cluster.backend("b");
    let begin = |at: usize| {
        let call = grpc.begin("ModelInfer", None, &one("slow"));
        await_metric(&metrics, "baton_client_slots_in_use ", (at + 1) as f64);
        call
    };
    let calls: Vec<_> = (0..4).map(begin).collect();
    await_metric(&metrics, "baton_gateway_held_bytes ", 0.0);
    check(&grpc.call("ModelInfer", None, &one("slow")), 8, None, true);
    // The first one executes; a batch is not taken back.
    calls[1..].iter().for_each(|call| call.abort());
    await_metric(&metrics, "baton_client_slots_in_use ", 1.0);
    await_metric(&metrics, "baton_gateway_requests_abandoned_total ", 3.0);
}

#[test]
fn a_client_hears_of_its_deadline_before_it_gives_up_whatever_the_backend_does() {
    let cluster = Cluster::quick_and_slow("grpc-deadline");
    let (_gateway, grpc) = gateway(&cluster);
    let backend = cluster.backend("a");
    check(&grpc.call("ModelInfer", None, &one("quick")), 0, Some("completed"), false);
    backend.signal(Signal::STOP);
    let requests = ["a", "b"].map(|id| with_id(id, &one("quick")));
    let stream = grpc.begin_stream("ModelStreamInfer", Some("600m"), &requests);
    let ended = grpc.call("ModelInfer", Some("600m"), &one("quick"));
    let stream = grpc.end(stream);
    backend.signal(Signal::CONT);
    assert_eq!(ended.code(), 4, "{ended:?}");
    assert!(ended.words().contains("599 ms"), "{ended:?}");
    let said = stream.streamed();
    assert_eq!((stream.code(), said.len()), (0, 2), "{stream:?}");
    let is_late = |said: &StreamResponse| said.error_message.starts_with("no answer within the ");
    assert!(said.iter().all(is_late), "{said:?}");
}

#[test]
fn a_request_that_comes_late_on_a_stream_has_what_is_left_of_its_time() {
    let cluster = Cluster::quick_and_slow("grpc-late");
    let (_gateway, grpc) = gateway(&cluster);
    let backend = cluster.backend("a");
    check(&grpc.call("ModelInfer", None, &one("quick")), 0, Some("completed"), false);
    let stream = grpc.open_stream("ModelStreamInfer", Some("400m"));
    backend.signal(Signal::STOP);
    // Its end is later than that of the stream's time.
    check(&grpc.call("ModelInfer", Some("500m"), &one("quick")), 4, None, false);
    backend.signal(Signal::CONT);
    stream.send(&one("quick"));
    let said = grpc.close(stream).streamed();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].error_message.contains(" 0 ms"), "nothing was left: {said:?}");
}

#[test]
fn each_request_of_a_stream_has_its_answer_or_its_problem() {
    let cluster = Cluster::quick_and_slow("grpc-stream");
    let (gateway, grpc) = gateway(&cluster);
    let _backend = cluster.backend("a");
    let requests = [
        with_id("a", &rows("quick", &[[1; 8], [2; 8]])),
        with_id("b", &one("other")),
        vec![0xff; 20],
        with_id("c", &rows("quick", &[[0; 8]; 5])),
        with_id("d", &rows("quick", &[[3; 8]])),
    ];
    let ended = grpc.end(grpc.begin_stream("ModelStreamInfer", None, &requests));
    assert_eq!(ended.code(), 0, "{ended:?}");
    let said = ended.streamed();
    let of = |id: &str| {
        let has_id = |said: &&StreamResponse| said.infer_response.as_ref().unwrap().id == id;
        let mut all = said.iter().filter(has_id);
        let one = all.next().unwrap_or_else(|| panic!("no answer to {id:?}: {said:?}"));
        assert!(all.next().is_none(), "two answers to {id:?}: {said:?}");
        one
    };
    for (id, given) in [("a", &[[1; 8], [2; 8]][..]), ("d", &[[3; 8]])] {
        let StreamResponse { error_message, infer_response } = of(id);
        let expected: Vec<u8> = given.iter().flat_map(|row| checksum(row)).collect();
        assert_eq!(
            (&error_message[..], &infer_response.as_ref().unwrap().raw),
            ("", &vec![expected])
        );
    }
    for (id, words) in
        [("b", "this gateway has: quick, slow"), ("", "no inference request"), ("c", "give 1 to 4")]
    {
        assert!(of(id).error_message.contains(words), "{id:?}: {said:?}");
    }
    assert_eq!(said.len(), requests.len());
    // Each request of the stream, and the stream itself.
    let metrics = gateway.metrics_addr();
    for (result, count) in [("ok", 3.0), ("invalid", 2.0), ("not_found", 1.0)] {
        let series =
            format!("baton_gateway_requests_total{{protocol=\"grpc\",result=\"{result}\"}} ");
        await_metric(&metrics, &series, count);
    }
}

#[test]
fn a_stream_that_is_given_up_frees_its_slots() {
    let cluster = Cluster::quick_and_slow("grpc-stream-slots");
    let (gateway, grpc) = gateway(&cluster);
    let metrics = gateway.metrics_addr();
    let _backend = cluster.backend("b");
    let _executing = grpc.begin("ModelInfer", None, &one("slow"));
    await_metric(&metrics, "baton_client_slots_in_use ", 1.0);
    let stream = grpc.begin_stream("ModelStreamInfer", None, &vec![one("slow"); 3]);
    await_metric(&metrics, "baton_client_slots_in_use ", 4.0);
    await_metric(&metrics, "baton_gateway_held_bytes ", 0.0);
    stream.abort();
    await_metric(&metrics, "baton_client_slots_in_use ", 1.0);
}

#[test]
fn a_stream_has_as_many_requests_under_way_as_a_connection_may_and_no_more() {
    let most = Limits::default().streams;
    let slots = format!("slots_per_model = {most}");
    let text = QUICK_AND_SLOW.replace("slots_per_model = 4", &slots);
    let cluster = Cluster::of(Folder::new("grpc-stream-most"), &text);
    let (gateway, grpc) = gateway(&cluster);
    let backend = cluster.backend("b");
    let waiting = (0..most).map(|at| with_id(&at.to_string(), &one("slow")));
    let requests: Vec<_> = waiting.chain([with_id("next", &one("other"))]).collect();
    let stream = grpc.begin_stream("ModelStreamInfer", None, &requests);
    await_metric(&gateway.metrics_addr(), "baton_client_slots_in_use ", f64::from(most));
    // All that wait end with their backend.
    drop(backend);
    let said = grpc.end(stream).streamed();
    assert_eq!(said.len(), requests.len());
    let first = said[0].infer_response.as_ref().unwrap();
    assert_ne!(first.id, "next", "it is read once another one has ended: {said:?}");
}
