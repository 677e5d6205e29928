//! `baton bench matrix` and `baton bench responder`: READs between every two hosts of a cluster.
//!
//! A responder runs on every host, with the cluster file, and finds the driver where the scheduler
//! will be: at the address the file gives it. Each responder offers objects as a frontend does; the
//! driver lets one at a time pull from another as a backend does, first one object at a time, then
//! with several under way. Pairs are measured one after the other, so that none disturbs another.

mod line;
mod report;
mod responder;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use baton_core::Nanos;
use baton_topo::{Clock, park_thread};

use super::PullError;
use line::{Line, Order, Said};
pub use report::{Cell, MatrixReport, Measured};
pub use responder::{Responder, respond};

/// Most hosts: every two of them are measured.
const HOSTS_MAX: usize = 64;
/// Longest name of one, bytes.
const NAME_MAX: usize = 64;
/// What a responder may take for anything but measuring.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between looks whether a responder has come.
const AGAIN: Nanos = Nanos::from_millis(50);

/// What to run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Matrix {
    /// Where responders come: the scheduler's address.
    pub listen: SocketAddr,
    /// How many are awaited.
    pub hosts: usize,
    /// How long.
    pub wait: Nanos,
    /// Objects under way when bandwidth is measured.
    pub objects: u32,
    /// Bytes of an object.
    pub bytes: u32,
    /// Length of each measurement; a pair takes two.
    pub seconds: f64,
    /// Rate of the links, Gb/s, if the efficiency is to be computed.
    pub link_gbps: Option<f64>,
}

/// Why there is no matrix.
#[derive(Debug, thiserror::Error)]
pub enum MatrixError {
    /// Too few hosts or too many.
    #[error("{0} hosts: give 2 to {HOSTS_MAX}")]
    Hosts(usize),
    /// The driver cannot listen.
    #[error("cannot listen on {addr}, the scheduler's address: {source}; is a scheduler running?")]
    Listen {
        /// Where.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Not all responders came.
    #[error("{come} of {wanted} responders came; start `baton bench responder` on the others")]
    Missing {
        /// How many came.
        come: usize,
        /// How many were awaited.
        wanted: usize,
    },
    /// A responder reached no driver.
    #[error("no driver at {addr}: {source}; start `baton bench matrix` on the scheduler's host")]
    NoDriver {
        /// Where.
        addr: SocketAddr,
        /// The last answer.
        source: io::Error,
    },
    /// A name is taken, empty or too long.
    #[error("a responder calls itself {0:?}: names are of 1 to {NAME_MAX} bytes, each different")]
    Name(String),
    /// The conversation with one broke.
    #[error("the conversation with {with} broke: {source}")]
    Line {
        /// With whom.
        with: String,
        /// How.
        source: io::Error,
    },
    /// A responder could not offer its objects, or the shape is impossible.
    #[error(transparent)]
    Pull(#[from] PullError),
}

/// Runs it.
///
/// # Errors
/// See [`MatrixError`]. A pair that fails is in the report.
pub fn matrix(matrix: &Matrix, clock: Clock) -> Result<MatrixReport, MatrixError> {
    if !(2..=HOSTS_MAX).contains(&matrix.hosts) {
        return Err(MatrixError::Hosts(matrix.hosts));
    }
    let Matrix { listen: addr, objects, bytes, .. } = *matrix;
    super::check_shape(1, objects, bytes)?;
    let listener = TcpListener::bind(addr);
    let listener = listener.map_err(|source| MatrixError::Listen { addr, source })?;
    let mut hosts = gather(matrix, &listener, clock)?;
    for (number, host) in (0..).zip(&mut hosts) {
        host.serve(number, matrix)?;
    }
    let mut cells = Vec::new();
    for puller in 0..hosts.len() {
        for sender in (0..hosts.len()).filter(|sender| *sender != puller) {
            cells.push(pair(matrix, &mut hosts, puller, sender)?);
        }
    }
    for host in &mut hosts {
        host.say(&Order::End)?;
    }
    let hosts = hosts.into_iter().map(|host| host.name).collect();
    Ok(MatrixReport { bench: "matrix", bytes, objects, hosts, cells })
}

/// A responder as the driver sees it.
struct Host {
    name: String,
    line: Line,
    /// Where its objects are.
    addr: SocketAddr,
}

impl Host {
    fn serve(&mut self, number: u16, matrix: &Matrix) -> Result<(), MatrixError> {
        let Matrix { objects, bytes, .. } = *matrix;
        self.say(&Order::Serve { number, objects, bytes })?;
        let Said::Serving { addr } = self.hear()? else {
            return Err(self.broken(io::ErrorKind::InvalidData.into()));
        };
        let observed = self.line.peer_addr().map_err(|error| self.broken(error))?.ip();
        let ip = if addr.ip().is_unspecified() { observed } else { addr.ip() };
        self.addr = SocketAddr::new(ip, addr.port());
        Ok(())
    }

    fn say(&mut self, order: &Order) -> Result<(), MatrixError> {
        self.line.say(order).map_err(|error| self.broken(error))
    }

    fn hear(&mut self) -> Result<Said, MatrixError> {
        self.line.hear().map_err(|error| self.broken(error))
    }

    fn broken(&self, source: io::Error) -> MatrixError {
        MatrixError::Line { with: self.name.clone(), source }
    }
}

/// Awaits all responders; in alphabetical order, so that two runs look alike.
fn gather(matrix: &Matrix, listener: &TcpListener, clock: Clock) -> Result<Vec<Host>, MatrixError> {
    let addr = matrix.listen;
    let system = |source| MatrixError::Listen { addr, source };
    listener.set_nonblocking(true).map_err(system)?;
    let until = clock.now() + matrix.wait;
    let patience = PATIENCE + Duration::from_secs_f64(2.0 * matrix.seconds);
    let mut hosts = Vec::<Host>::new();
    while hosts.len() < matrix.hosts {
        match listener.accept() {
            Ok((stream, from)) => match hello(stream, patience) {
                Ok((name, line)) => hosts.push(welcome(name, line, from, &hosts)?),
                // The responders are still awaited, whatever connected here.
                Err(error) => tracing::warn!(%from, %error, "no responder"),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => park_thread(Some(AGAIN)),
            Err(error) => return Err(system(error)),
        }
        if hosts.len() < matrix.hosts && clock.now() > until {
            return Err(MatrixError::Missing { come: hosts.len(), wanted: matrix.hosts });
        }
    }
    hosts.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(hosts)
}

fn hello(stream: std::net::TcpStream, patience: Duration) -> io::Result<(String, Line)> {
    let mut line = Line::new(stream, patience)?;
    match line.hear()? {
        Said::Hello { name } => Ok((name, line)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn welcome(
    name: String,
    line: Line,
    addr: SocketAddr,
    hosts: &[Host],
) -> Result<Host, MatrixError> {
    let is_new = hosts.iter().all(|host| host.name != name);
    if !is_new || !(1..=NAME_MAX).contains(&name.len()) {
        return Err(MatrixError::Name(name));
    }
    tracing::info!(name, %addr, "a responder has come");
    Ok(Host { name, line, addr })
}

fn pair(
    matrix: &Matrix,
    hosts: &mut [Host],
    puller: usize,
    sender: usize,
) -> Result<Cell, MatrixError> {
    let (addr, sender_name) = (hosts[sender].addr, hosts[sender].name.clone());
    let host = &mut hosts[puller];
    host.say(&Order::Pull { addr, number: sender as u16, seconds: matrix.seconds })?;
    let Said::Done(done) = host.hear()? else {
        return Err(host.broken(io::ErrorKind::InvalidData.into()));
    };
    let (measured, error) = match done {
        Ok(measured) => (Some(measured), None),
        Err(error) => (None, Some(error)),
    };
    let link = matrix.link_gbps.map(|gbps| gbps / 8.0);
    let efficiency = measured.as_ref().zip(link).map(|(done, link)| done.gigabytes_per_s / link);
    Ok(Cell { puller: host.name.clone(), sender: sender_name, measured, efficiency, error })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use baton_topo::{FabricSpec, Idle, TransportChoice};

    use super::*;

    /// An address that was free a moment ago.
    fn free() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.local_addr().unwrap()
    }

    fn shape(hosts: usize) -> Matrix {
        Matrix {
            listen: free(),
            hosts,
            wait: Nanos::from_millis(20_000),
            objects: 4,
            bytes: 5_000,
            seconds: 0.02,
            link_gbps: Some(100.0),
        }
    }

    fn responder(name: &str, driver: SocketAddr) -> Responder {
        Responder {
            name: name.to_owned(),
            driver,
            wait: Nanos::from_millis(20_000),
            listen: None,
            fabric: FabricSpec { transport: TransportChoice::Tcp, ..FabricSpec::default() },
            idle: Idle::Park,
        }
    }

    #[test]
    fn every_ordered_pair_of_three_is_measured() {
        let shape = shape(3);
        let responders = ["c", "a", "b"].map(|name| {
            let responder = responder(name, shape.listen);
            thread::spawn(move || respond(&responder, Clock::start()))
        });
        let report = matrix(&shape, Clock::start()).unwrap();
        for thread in responders {
            thread.join().unwrap().unwrap();
        }
        assert!(report.is_whole(), "{report}");
        assert_eq!(report.hosts, ["a", "b", "c"]);
        let pairs: Vec<_> =
            report.cells.iter().map(|cell| format!("{}{}", cell.puller, cell.sender)).collect();
        assert_eq!(pairs, ["ab", "ac", "ba", "bc", "ca", "cb"]);
        for cell in &report.cells {
            let measured = cell.measured.as_ref().unwrap();
            assert!(measured.rounds > 0 && measured.latency_us.min > 0.0, "{cell:?}");
            assert!(measured.gigabytes_per_s > 0.0 && cell.efficiency.unwrap() > 0.0, "{cell:?}");
            assert_eq!(measured.transport, "tcp");
        }
    }

    #[test]
    fn two_of_one_name_too_few_and_impossible_shapes_are_refused() {
        let twice = shape(2);
        let same = ["a", "a"].map(|name| {
            let responder = responder(name, twice.listen);
            thread::spawn(move || respond(&responder, Clock::start()))
        });
        let refused = matrix(&twice, Clock::start());
        assert!(matches!(refused, Err(MatrixError::Name(name)) if name == "a"));
        for thread in same {
            assert!(matches!(thread.join(), Ok(Err(MatrixError::Line { .. }))));
        }
        let alone = Matrix { wait: Nanos::from_millis(1), ..shape(2) };
        let refused = matrix(&alone, Clock::start());
        assert!(matches!(refused, Err(MatrixError::Missing { come: 0, wanted: 2 })));
        for hosts in [0, 1, HOSTS_MAX + 1] {
            let refused = matrix(&Matrix { hosts, ..alone }, Clock::start());
            assert!(matches!(refused, Err(MatrixError::Hosts(_))));
        }
        let refused = matrix(&Matrix { objects: 0, ..alone }, Clock::start());
        assert!(matches!(refused, Err(MatrixError::Pull(PullError::Shape { .. }))));
        let impatient = Responder { wait: Nanos::ZERO, ..responder("a", free()) };
        let refused = respond(&impatient, Clock::start());
        assert!(matches!(refused, Err(MatrixError::NoDriver { .. })));
    }
}
