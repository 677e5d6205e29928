//! The floor: the same bytes over bare sockets between two processes, one thread each, and nothing else. A client
//! keeps [`WINDOW`] messages under way and refills the window by halves; the far end reads what has come and answers
//! each message with [`ANSWER`] bytes. What a path through three processes cannot beat.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use baton_core::Nanos;
use baton_topo::Clock;

use super::costs::cpu_total;
use super::{PathBench, PathError};
use crate::machine::thread_time;
use crate::processes::{Note, ProcessError, Processes};

/// Messages under way.
const WINDOW: usize = 256;
/// Messages that share a system call of the client at least. Without a bound chance decides how many do, and with
/// them the floor.
const SHARED: usize = WINDOW / 2;
/// Bytes of an answer.
const ANSWER: usize = 40;
/// Bytes that either side reads at a time at most.
const PIECE: usize = 64 * 1024;
/// A far end that has not answered by then never will.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Length of one exchange. The kernel lets both ends share a core at times and gives each its own at others, where a
/// sleeping core may take long to wake up: the best of several exchanges does not depend on that.
const STRETCH: Nanos = Nanos::from_millis(50);
/// Of a measurement's length: the part that bare sockets get before it, and again after it.
const SHARE: f64 = 0.125;
/// How long they get at least and at most, seconds.
const SECONDS: [f64; 2] = [0.1, 1.0];

/// What bare sockets carry, and what that costs both processes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Floor {
    /// Messages sent and answered, per second.
    pub(super) per_s: f64,
    /// CPU time of both ends per message, µs.
    pub(super) cpu_us: f64,
}

/// The process at the far end, and the connection to it. Dropped, it ends.
pub(super) struct FarEnd {
    /// Its number among the children.
    number: usize,
    socket: TcpStream,
}

impl FarEnd {
    pub(super) fn start(processes: &mut Processes<'_>, bytes: u32) -> Result<Self, PathError> {
        let number = processes.count();
        let args = ["bench", "path-end", "--bytes", &bytes.to_string()];
        let addr = processes.start_listener("far-end", &args)?;
        let socket = connect(&addr).map_err(PathError::Floor)?;
        Ok(Self { number, socket })
    }

    /// The floor now, while the cluster has nothing to do: the best of several stretches.
    pub(super) fn measure(
        &mut self,
        processes: &mut Processes<'_>,
        bench: &PathBench,
        clock: Clock,
    ) -> Result<Floor, PathError> {
        let [least, most] = SECONDS;
        let length = Nanos::from_millis_f64((bench.seconds * SHARE).clamp(least, most) * 1e3);
        let end = clock.now() + length;
        let mut best = self.stretch(processes, bench.bytes, clock)?;
        while clock.now() < end && !processes.is_stopping() {
            let stretch = self.stretch(processes, bench.bytes, clock)?;
            best = if stretch.per_s > best.per_s { stretch } else { best };
        }
        if processes.is_stopping() {
            return Err(ProcessError::Interrupted.into());
        }
        processes.tell(Note::Step(&format!("bare sockets: {:.0} messages/s", best.per_s)));
        Ok(best)
    }

    fn stretch(
        &mut self,
        processes: &Processes<'_>,
        bytes: u32,
        clock: Clock,
    ) -> Result<Floor, PathError> {
        let theirs = || cpu_total(&processes.threads(self.number));
        let before = theirs();
        let done = exchange(&mut self.socket, bytes as usize, STRETCH, clock);
        let Exchanged { round_trips, took, cpu } = done.map_err(PathError::Floor)?;
        let cpu = cpu + (theirs() - before);
        let per_s = round_trips as f64 / took.as_millis_f64() * 1e3;
        Ok(Floor { per_s, cpu_us: cpu.as_millis_f64() * 1e3 / round_trips as f64 })
    }
}

fn connect(addr: &str) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(addr)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(socket)
}

/// What the client's side came to.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Exchanged {
    round_trips: u64,
    took: Nanos,
    /// CPU time of this side.
    cpu: Nanos,
}

/// The far end: answers on one connection until the client hangs up. `listening` is called with its address.
///
/// # Errors
/// No socket, or a connection that broke.
pub fn respond(bytes: u32, listening: impl FnOnce(SocketAddr) -> io::Result<()>) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listening(listener.local_addr()?)?;
    answer(listener.accept()?.0, bytes as usize)
}

/// Until the client hangs up.
fn answer(mut socket: TcpStream, bytes: usize) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let (mut piece, answers) = (vec![0; PIECE], vec![0; ANSWER * WINDOW]);
    let mut left = 0;
    loop {
        let n = socket.read(&mut piece)?;
        if n == 0 {
            return Ok(());
        }
        let whole = (left + n) / bytes;
        left = (left + n) % bytes;
        // No more than the window, or the client has sent what it must not.
        let answers = answers.get(..ANSWER * whole).ok_or(io::ErrorKind::InvalidData)?;
        socket.write_all(answers)?;
    }
}

/// The client's side, for so long and until every message is answered.
fn exchange(
    socket: &mut TcpStream,
    bytes: usize,
    length: Nanos,
    clock: Clock,
) -> io::Result<Exchanged> {
    let (messages, mut piece) = (vec![0; bytes * WINDOW], vec![0; PIECE]);
    let (start, cpu) = (clock.now(), thread_time());
    socket.write_all(&messages)?;
    let (mut round_trips, mut under_way, mut left) = (0, WINDOW, 0);
    loop {
        let n = socket.read(&mut piece)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let whole = (left + n) / ANSWER;
        left = (left + n) % ANSWER;
        round_trips += whole as u64;
        under_way -= whole;
        let took = clock.now() - start;
        if took < length && WINDOW - under_way >= SHARED {
            socket.write_all(&messages[..(WINDOW - under_way) * bytes])?;
            under_way = WINDOW;
        } else if under_way == 0 {
            return Ok(Exchanged { round_trips, took, cpu: thread_time() - cpu });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn every_message_is_answered_whatever_its_length_and_the_far_end_ends() {
        for bytes in [1, 64, 5_000, 65_536] {
            let (sender, addr) = channel();
            let tell = move |addr| sender.send(addr).map_err(io::Error::other);
            let far_end = std::thread::spawn(move || respond(bytes, tell));
            let mut socket = connect(&addr.recv().unwrap().to_string()).unwrap();
            let (length, clock) = (Nanos::from_millis(20), Clock::start());
            for _ in 0..2 {
                let done = exchange(&mut socket, bytes as usize, length, clock).unwrap();
                assert!(done.round_trips >= WINDOW as u64 && done.took >= length, "{done:?}");
                assert!(done.cpu > Nanos::ZERO, "{done:?}");
            }
            drop(socket);
            far_end.join().unwrap().unwrap();
        }
    }
}
