//! `baton config check`.

use std::path::Path;
use std::process::ExitCode;

use baton_rdma::Credentials;
use baton_topo::{Cluster, check_cluster};

use crate::CommandResult;
use crate::output::say;

/// Prints the problems, or the cluster as it was understood, and the warnings. With `[tls]` the
/// certificate of this host is looked at as its peers will; so are the files for etcd.
pub(crate) fn check(file: &Path) -> CommandResult {
    let checked = check_cluster(file);
    for warning in &checked.warnings {
        say(&format!("warning: {warning}"))?;
    }
    let problems = match checked.cluster {
        Ok(cluster) => {
            say(&cluster.to_string())?;
            let etcd = cluster.scheduler.etcd.as_ref().and_then(|etcd| etcd.tls.as_ref());
            let etcd = etcd.and_then(|tls| baton_leader::check_files(tls).err());
            let mut problems = certificate_problems(&cluster);
            problems.extend(etcd.map(|error| error.to_string()));
            problems
        }
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    };
    for problem in &problems {
        say(problem)?;
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn certificate_problems(cluster: &Cluster) -> Vec<String> {
    let Some(tls) = &cluster.fabric.tls else { return Vec::new() };
    match Credentials::load(tls) {
        Ok(credentials) => credentials.problems(),
        Err(error) => vec![error.to_string()],
    }
}
