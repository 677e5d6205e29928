//! The same bytes over bare sockets, read and written in as large pieces as they come: what a
//! transport over TCP cannot beat.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use baton_core::Nanos;
use baton_topo::{Clock, Idle, Placement, prepare_thread};

use super::super::PullError;
use super::{SendRate, Turn, UNDER_WAY_MAX, place};

/// The sender's end.
pub(super) struct Bare {
    clock: Clock,
    idle: Idle,
    bytes: u64,
    depth: u64,
    socket: TcpStream,
    buffer: Vec<u8>,
    turn: Arc<Turn>,
    responder: Option<JoinHandle<()>>,
}

impl Bare {
    pub(super) fn start(run: &SendRate, clock: Clock) -> Result<Self, PullError> {
        let system = |what| move |source| PullError::System { what, source };
        let (socket, theirs) = pair(run.idle).map_err(system("the bare loop's sockets"))?;
        let (placement, turn) = (place(run, "bare-responder", 1), Arc::<Turn>::default());
        let their_turn = Arc::clone(&turn);
        let name = placement.name.clone();
        let respond = move || respond(theirs, &placement, &their_turn);
        let thread = thread::Builder::new().name(name).spawn(respond);
        Ok(Self {
            clock,
            idle: run.idle,
            bytes: run.bytes.into(),
            depth: run.depth.into(),
            socket,
            buffer: vec![0; UNDER_WAY_MAX as usize],
            turn,
            responder: Some(thread.map_err(system("the bare responder's thread"))?),
        })
    }

    /// As `Ours::stretch`.
    pub(super) fn stretch(&mut self, count: u64) -> Result<Nanos, PullError> {
        let system = |source| PullError::System { what: "the bare loop", source };
        self.give(Turn::WORK);
        let start = self.clock.now();
        self.echo(count).map_err(system)?;
        let took = self.clock.now() - start;
        self.give(Turn::REST);
        Ok(took)
    }

    fn echo(&mut self, count: u64) -> io::Result<()> {
        let (all, first) = (count * self.bytes, self.depth.min(count) * self.bytes);
        let (mut sent, mut answered) = (first, 0);
        write_all(&mut self.socket, &self.buffer[..first as usize], self.idle)?;
        while answered < all {
            let n = read(&mut self.socket, &mut self.buffer, self.idle)?;
            answered += n as u64;
            let more = (n as u64).min(all - sent);
            write_all(&mut self.socket, &self.buffer[..more as usize], self.idle)?;
            sent += more;
        }
        Ok(())
    }

    fn give(&self, turn: u8) {
        self.turn.set(turn, self.responder.as_ref().expect("it ends in drop").thread());
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.give(Turn::END);
        // Ends a blocking read; one that has failed already has ended too.
        drop(self.socket.shutdown(std::net::Shutdown::Both));
        if self.responder.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the bare responder panicked");
        }
    }
}

fn pair(idle: Idle) -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let (theirs, _) = listener.accept()?;
    for socket in [&ours, &theirs] {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(idle != Idle::Park)?;
    }
    Ok((ours, theirs))
}

/// Sends back what comes, until the sender hangs up.
fn respond(mut socket: TcpStream, placement: &Placement, turn: &Turn) {
    prepare_thread(placement);
    let idle = placement.idle;
    let mut buffer = vec![0; UNDER_WAY_MAX as usize];
    while turn.await_turn() {
        match socket.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) if write_all(&mut socket, &buffer[..n], idle).is_err() => return,
            Ok(_) => {}
            Err(error) if is_passing(&error) => rest(idle),
            Err(_) => return,
        }
    }
}

fn read(socket: &mut TcpStream, buffer: &mut [u8], idle: Idle) -> io::Result<usize> {
    loop {
        match socket.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if is_passing(&error) => rest(idle),
            read => return read,
        }
    }
}

fn write_all(socket: &mut TcpStream, mut bytes: &[u8], idle: Idle) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if is_passing(&error) => rest(idle),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Blocking sockets (`Park`) rest in the call itself.
fn rest(idle: Idle) {
    match idle {
        Idle::Yield => thread::yield_now(),
        Idle::Spin | Idle::Park => std::hint::spin_loop(),
    }
}
