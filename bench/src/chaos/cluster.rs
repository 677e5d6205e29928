//! The cluster that is disturbed: which processes there are, and each one's present life.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::process::Signal;

use crate::chaos::ChaosConfig;
use crate::chaos::links::Relay;
use crate::chaos::plan::Who;
use crate::load::{Finished, Message};
use crate::processes::{Child, ChildEvent, EVENTS_MAX, Folder, ProcessError};

pub(super) const MODEL: &str = "m";
/// Tasks per second of each frontend process.
const RATE: &str = "m=50";
/// A killed process is gone by then, and one that was asked to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of a log a report shows.
const LOG_CHARS: usize = 800;

/// One process of the cluster, whichever life.
#[derive(Debug)]
struct ProcessPlace {
    who: Who,
    child: Option<Child>,
    /// Which life: events carry it.
    life: usize,
    /// It has said that it serves, or may be joined.
    is_up: bool,
    /// This run has ended it, or noted its death: its end is no news.
    is_dismissed: bool,
}

/// All of them. Dropped, they are killed.
pub(super) struct Cluster<'a> {
    config: &'a ChaosConfig,
    folder: &'a Folder,
    file: PathBuf,
    seats: Vec<ProcessPlace>,
    /// The seat of each life.
    lives: Vec<usize>,
    sender: SyncSender<ChildEvent>,
    events: Receiver<ChildEvent>,
    scheduler: SocketAddr,
    pub(super) relay: Option<Relay>,
    /// Reports of frontends that ended in order.
    pub(super) finished: Vec<Finished>,
    /// What the faults do not explain.
    pub(super) trouble: Vec<String>,
}

impl<'a> Cluster<'a> {
    pub(super) fn new(config: &'a ChaosConfig, folder: &'a Folder) -> Result<Self, ProcessError> {
        let (backends, frontends) = config.members();
        let file = folder.write("cluster.toml", text(backends).as_bytes())?;
        let everyone = [Who::Scheduler]
            .into_iter()
            .chain((0..backends).map(Who::Backend))
            .chain((0..frontends).map(Who::Frontend));
        let seat =
            |who| ProcessPlace { who, child: None, life: 0, is_up: false, is_dismissed: false };
        let (sender, events) = sync_channel(EVENTS_MAX);
        Ok(Self {
            config,
            folder,
            file,
            seats: everyone.map(seat).collect(),
            lives: Vec::new(),
            sender,
            events,
            scheduler: SocketAddr::from(([127, 0, 0, 1], 0)),
            relay: None,
            finished: Vec::new(),
            trouble: Vec::new(),
        })
    }

    /// Where the scheduler listens, whether it lives or not.
    pub(super) fn scheduler(&self) -> SocketAddr {
        self.scheduler
    }

    /// Where members join.
    pub(super) fn door(&self) -> SocketAddr {
        self.relay.as_ref().map_or(self.scheduler, Relay::addr)
    }

    /// Everybody but the scheduler.
    pub(super) fn members(&self) -> Vec<Who> {
        self.seats.iter().map(|seat| seat.who).filter(|&who| who != Who::Scheduler).collect()
    }

    /// Starts the next life of a process; `full`: nothing can be written to its log.
    pub(super) fn start(&mut self, who: Who, full: bool) -> Result<(), ProcessError> {
        let name = format!("{who}-{}", self.lives.len());
        let folder = self.folder.path();
        if full {
            // The log is created there, as a log on a full disk can be.
            symlink("/dev/full", folder.join(format!("{name}.log")))
                .map_err(|source| ProcessError::Process { name: name.clone(), source })?;
        }
        let (life, args) = (self.lives.len(), self.args(who));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let command = self.config.children.command(&args);
        let child = Child::start(life, &name, command, folder, self.sender.clone())?;
        let at = self.at(who);
        self.lives.push(at);
        self.seats[at] =
            ProcessPlace { who, child: Some(child), life, is_up: false, is_dismissed: false };
        Ok(())
    }

    fn args(&self, who: Who) -> Vec<String> {
        let (file, door) = (self.file.display().to_string(), self.door().to_string());
        let (listen, seed) = (self.scheduler.to_string(), self.lives.len().to_string());
        let name = if let Who::Backend(at) = who { format!("b{at}") } else { String::new() };
        let mut args = match who {
            Who::Scheduler => vec!["scheduler", "--listen", &listen],
            Who::Backend(_) => vec!["backend", "--scheduler", &door, "--name", &name],
            Who::Frontend(_) => {
                let for_ever = ["--seconds", "86400", "--progress-json", "--seed", &seed];
                [&["load", "--scheduler", &door, "--rate", RATE][..], &for_ever].concat()
            }
        };
        args.extend(["--config", &file]);
        args.into_iter().map(str::to_owned).collect()
    }

    /// True once its present life has said that it is there.
    pub(super) fn is_up(&self, who: Who) -> bool {
        self.seats[self.at(who)].is_up
    }

    /// kill −9; returns once it is gone. What a frontend had outstanding goes with it.
    pub(super) fn kill(&mut self, who: Who) -> Result<(), ProcessError> {
        self.signal(who, Signal::KILL);
        let seat = self.at(who);
        self.seats[seat].is_dismissed = true;
        self.wait(who).map(|_| ())
    }

    pub(super) fn signal(&self, who: Who, signal: Signal) {
        if let Some(child) = &self.seats[self.at(who)].child {
            child.signal(signal);
        }
    }

    /// Asks it to end in order; it must, with success and in time.
    pub(super) fn end(&mut self, who: Who) -> Result<(), ProcessError> {
        let at = self.at(who);
        self.seats[at].is_dismissed = true;
        self.signal(who, Signal::TERM);
        let ended = self.wait(who)?;
        if !ended {
            let log = self.log(at);
            self.trouble.push(format!("{who} did not end in order; its log ends:\n{log}"));
        }
        Ok(())
    }

    /// True if it has ended with success in time. Its lines are read meanwhile, so that it can write.
    fn wait(&mut self, who: Who) -> Result<bool, ProcessError> {
        let at = self.at(who);
        let rounds = END_TIMEOUT.as_millis() / 10;
        for _ in 0..rounds {
            self.listen();
            let Some(child) = &mut self.seats[at].child else { return Ok(false) };
            if let Some(status) = child.wait(Duration::from_millis(10))? {
                return Ok(status.success());
            }
        }
        Ok(false)
    }

    /// Takes in what the processes have said.
    pub(super) fn listen(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                ChildEvent::Line { child, line } => self.on_line(child, &line),
                ChildEvent::Closed { child } => self.on_closed(child),
            }
        }
    }

    /// As [`Cluster::listen`], until a frontend's last words are here or a bound is met.
    pub(super) fn await_reports(&mut self, frontends: usize) {
        for _ in 0..200 {
            self.listen();
            if self.finished.len() >= frontends {
                return;
            }
            baton_topo::park_thread(Some(baton_core::Nanos::from_millis(10)));
        }
    }

    fn on_line(&mut self, life: usize, line: &str) {
        let at = self.lives[life];
        let seat = &mut self.seats[at];
        let is_present = seat.life == life;
        match seat.who {
            Who::Scheduler => {
                if let Some(addr) = line.strip_prefix("listening ")
                    && let Ok(addr) = addr.parse()
                {
                    self.scheduler = addr;
                    seat.is_up |= is_present;
                }
            }
            Who::Backend(_) => seat.is_up |= is_present && line == "ready",
            Who::Frontend(_) => match serde_json::from_str(line) {
                Ok(Message::Progress(_)) => seat.is_up |= is_present,
                Ok(Message::Finished(finished)) => self.finished.push(finished),
                Err(_) => self.trouble.push(format!("{} wrote: {line}", seat.who)),
            },
        }
    }

    fn on_closed(&mut self, life: usize) {
        let at = self.lives[life];
        let seat = &self.seats[at];
        if seat.life == life && !seat.is_dismissed {
            let (who, log) = (seat.who, self.log(at));
            self.seats[at].is_dismissed = true;
            self.trouble.push(format!("{who} died by itself; its log ends:\n{log}"));
        }
    }

    /// Those that died by themselves.
    pub(super) fn dead(&self) -> Vec<Who> {
        self.seats.iter().filter(|seat| seat.is_dismissed).map(|seat| seat.who).collect()
    }

    fn log(&self, at: usize) -> String {
        let log = self.seats[at].child.as_ref().map(Child::log_tail).unwrap_or_default();
        let from = log.floor_char_boundary(log.len().saturating_sub(LOG_CHARS));
        log[from..].to_owned()
    }

    fn at(&self, who: Who) -> usize {
        let found = self.seats.iter().position(|seat| seat.who == who);
        found.expect("the plan knows how many there are")
    }
}

/// One model; a second until a member that says nothing is none.
fn text(backends: usize) -> String {
    let mut text = String::from(FILE);
    for at in 0..backends {
        write!(text, "[[backend]]\nname = \"b{at}\"\n").expect("writing to a String cannot fail");
    }
    text
}

const FILE: &str = "\
# Written by `baton bench chaos`.
[scheduler]
idle = \"park\"
member_timeout_ms = 1000
# Processes share what may be two cores: plan with timers that run late.
[network]
jitter_us = 2000
response_us = 2000
transport = \"tcp\"
[[model]]
name = \"m\"
alpha_ms = 1
beta_ms = 5
slo_ms = 250
input_bytes = 1024
";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_file_is_a_good_cluster_file_without_warnings() {
        let checked = baton_topo::check_text(Path::new("cluster.toml"), &text(3));
        assert_eq!(checked.warnings, []);
        let file = checked.cluster.unwrap();
        assert_eq!((file.backends.len(), file.models[0].name.as_str()), (3, MODEL));
    }
}
