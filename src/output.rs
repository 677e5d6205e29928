//! The one place that writes to stdout, and what stderr gets besides the log.

use std::error::Error;
use std::io::{self, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use baton_leader::{SchedulerLocator, StartError};
use baton_topo::{Cluster, Problem};

/// Writes results to stdout and flushes: the process that started this one waits for the line.
pub(crate) fn say(text: &str) -> io::Result<()> {
    write(text).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => io::Error::other(CutShort),
        _ => error,
    })
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()
}

/// The reader of stdout has seen enough, as `head` has: nothing is wrong.
#[derive(Debug)]
struct CutShort;

impl fmt::Display for CutShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stdout is closed")
    }
}

impl Error for CutShort {}

/// It is no error that people should see.
pub(crate) fn is_cut_short(error: &(dyn Error + 'static)) -> bool {
    let of_write = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    of_write.is_some_and(|error| error.is::<CutShort>())
}

/// As [`say`], with colour on a terminal unless `NO_COLOR` is set: the heading, what is as it must be, and what is not.
pub(crate) fn say_table(text: &str) -> io::Result<()> {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if is_plain || !io::stdout().is_terminal() {
        return say(text);
    }
    let lines = text.lines().enumerate().map(|(at, line)| painted(at, line));
    say(&lines.collect::<Vec<_>>().join("\n"))
}

fn painted(at: usize, line: &str) -> String {
    let begins = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
    let style = if at == 0 {
        "1"
    } else if begins(&["NOT CONSERVED", "LOST", "SCHEDULE NOT KEPT"]) {
        "1;31"
    } else if begins(&["conserved"]) {
        "32"
    } else {
        return line.to_owned();
    };
    format!("\x1b[{style}m{line}\x1b[0m")
}

/// Writes a file that is the former one or the new one, never a part.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let aside = PathBuf::from(aside);
    let written = fs::write(&aside, bytes).and_then(|()| fs::rename(&aside, path));
    written.map_err(|error| format!("cannot write {}: {error}; give another --out", path.display()))
}

/// Refuses to write over a file that is not of the kind that `is_ours` knows, and where there is no folder.
pub(crate) fn check_writable(
    out: &Path,
    is_ours: fn(&str) -> bool,
    writer: &str,
) -> Result<(), String> {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    if !folder.is_dir() {
        return Err(format!(
            "there is no folder {}; make it, or give another --out",
            folder.display()
        ));
    }
    match fs::read_to_string(out) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(text) if is_ours(&text) => Ok(()),
        _ => Err(format!(
            "{} is there and is no file of `{writer}`; give another --out",
            out.display()
        )),
    }
}

/// Writes why the command failed.
pub(crate) fn complain(text: &str) {
    // When stderr is gone, there is no place left to write to.
    let _ = writeln!(io::stderr().lock(), "baton: {text}");
}

/// The cluster of a file; its problems as one error.
pub(crate) fn load_cluster(file: &Path) -> Result<Cluster, String> {
    baton_topo::load_cluster(file).map_err(|problems| unusable(&problems))
}

/// Without its warnings: they are for who checks the file or starts a process of it, not for who asks a running cluster.
pub(crate) fn read_cluster(file: &Path) -> Result<Cluster, String> {
    baton_topo::check_cluster(file).cluster.map_err(|problems| unusable(&problems))
}

fn unusable(problems: &[Problem]) -> String {
    format!("the cluster file cannot be used:\n{}", Problem::lines(problems))
}

/// Where members find the scheduler: as given, else where etcd says that it leads, else where the file
/// says.
pub(crate) fn locator(
    cluster: &Cluster,
    given: Option<SocketAddr>,
) -> Result<SchedulerLocator, StartError> {
    match &cluster.scheduler.etcd {
        Some(etcd) if given.is_none() => SchedulerLocator::via_etcd(etcd),
        _ => Ok(scheduler_addr(cluster, given).into()),
    }
}

/// Where the one scheduler of a cluster is: as given, else where the file says that it listens. An
/// unspecified address to listen on means this host.
pub(crate) fn scheduler_addr(cluster: &Cluster, given: Option<SocketAddr>) -> SocketAddr {
    let mut addr = given.unwrap_or(cluster.scheduler.listen);
    if addr.ip().is_unspecified() {
        let loopback =
            if addr.is_ipv4() { [127, 0, 0, 1].into() } else { [0, 0, 0, 0, 0, 0, 0, 1].into() };
        addr.set_ip(loopback);
    }
    addr
}

/// Columns as wide as their widest cell.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_around_whole_lines_and_marks_what_matters() {
        assert_eq!(painted(0, "model  tasks"), "\x1b[1mmodel  tasks\x1b[0m");
        assert_eq!(painted(3, "resnet50  8"), "resnet50  8");
        assert!(painted(3, "conserved: 8").starts_with("\x1b[32m"));
        assert!(painted(3, "NOT CONSERVED: 8").starts_with("\x1b[1;31m"));
    }
}
