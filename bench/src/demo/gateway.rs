//! The demo's gateway: a process beside the frontends, and the line that calls it.

use std::net::SocketAddr;

use crate::processes::{ClusterFile, Note, ProcessError, Processes};

/// A request that the gateway answers: model, input, type, shape, elements.
type Example = (&'static str, &'static str, &'static str, &'static str, u32);

const DIGITS: Example = ("digits", "image", "FP32", "1,1,8,8", 64);
/// The emulated model with the shortest input.
const EMULATED: Example = ("BERT", "input", "UINT8", "1,2048", 2_048);
/// Longer than any objective of the demo: the machine may have much to do.
const TIMEOUT_US: u32 = 500_000;

/// Starts a gateway on a free port and prints a line for the shell that asks it for an inference.
pub(super) fn start(
    processes: &mut Processes<'_>,
    cluster: &ClusterFile,
    scheduler: SocketAddr,
    with_onnx: bool,
) -> Result<(), ProcessError> {
    let (file, scheduler) = (cluster.path.display().to_string(), scheduler.to_string());
    let args = ["gateway", "--config", &file, "--scheduler", &scheduler, "--http", "127.0.0.1:0"];
    let addr = processes.start_speaker("gateway", &args, "http ")?;
    let line = curl(&addr, if with_onnx { DIGITS } else { EMULATED });
    processes
        .tell(Note::Step(&format!("gateway at {addr} (docs/gateway.md); try it:\n\n  {line}\n")));
    Ok(())
}

fn curl(addr: &str, (model, input, datatype, shape, elements): Example) -> String {
    let more = elements - 1;
    let tensor = format!(
        "{{\"name\":\"{input}\",\"shape\":[{shape}],\"datatype\":\"{datatype}\",\"data\":[1'$(printf ',1%.0s' $(seq {more}))']}}"
    );
    let url = format!("http://{addr}/v2/models/{model}/infer");
    format!("curl -s -H 'baton-timeout-us: {TIMEOUT_US}' {url} -d '{{\"inputs\":[{tensor}]}}'")
}
