//! What an operator sees of a cluster.

use serde_json::Value;

use super::{Cluster, run};

/// What `baton status` says, as JSON.
pub(crate) fn status(cluster: &Cluster) -> Value {
    let output = run(&["status", "--json", "--scheduler", cluster.addr()]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "one object: {text}");
    serde_json::from_str(&text).unwrap()
}

/// Asks again until it is so. The caller's bound on the whole test ends it otherwise.
pub(crate) fn await_status(cluster: &Cluster, is_so: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..2_000 {
        let status = status(cluster);
        if is_so(&status) {
            return status;
        }
    }
    panic!("it does not come about: {}", status(cluster));
}
