//! `baton config check`.

use std::path::Path;
use std::process::ExitCode;

use baton_topo::check_cluster;

use crate::CommandResult;
use crate::output::say;

/// Prints the problems, or the cluster as it was understood, and the warnings.
pub(crate) fn check(file: &Path) -> CommandResult {
    let checked = check_cluster(file);
    for warning in &checked.warnings {
        say(&format!("warning: {warning}"))?;
    }
    match checked.cluster {
        Ok(cluster) => {
            say(&cluster.to_string())?;
            Ok(ExitCode::SUCCESS)
        }
        Err(problems) => {
            for problem in &problems {
                say(&problem.to_string())?;
            }
            Ok(ExitCode::FAILURE)
        }
    }
}
