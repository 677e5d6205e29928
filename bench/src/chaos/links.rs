//! Two nuisances on loopback: a relay whose connections can be cut, and a process that takes
//! another one's port and talks nonsense.
//!
//! Members reach the scheduler's control address through the relay. The addresses that members and
//! ModelThreads tell each other are their own, so those connections pass by it.

use std::io::{self, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// For the relay to reach the scheduler.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Bytes of nonsense a connection gets.
const NONSENSE_BYTES: usize = 4096;

/// A listener with a thread that accepts until this is dropped.
#[derive(Debug)]
struct Door {
    addr: SocketAddr,
    closed: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Door {
    fn open(
        addr: SocketAddr,
        mut greet: impl FnMut(TcpStream) + Send + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(addr)?;
        let addr = listener.local_addr()?;
        let closed = Arc::new(AtomicBool::new(false));
        let is_closed = Arc::clone(&closed);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if is_closed.load(Ordering::Acquire) {
                    return;
                }
                stream.into_iter().for_each(&mut greet);
            }
        });
        Ok(Self { addr, closed, thread: Some(thread) })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Wakes the thread; if that fails it is not waiting.
        let woken = TcpStream::connect_timeout(&self.addr, CONNECT_TIMEOUT).is_ok();
        if let Some(thread) = self.thread.take()
            && woken
            && thread.join().is_err()
        {
            tracing::error!("a nuisance's thread panicked");
        }
    }
}

/// Passes connections on to one address.
#[derive(Debug)]
pub(super) struct Relay {
    door: Door,
    /// Both ends of each connection.
    links: Arc<Mutex<Vec<[TcpStream; 2]>>>,
}

impl Relay {
    pub(super) fn start(to: SocketAddr) -> io::Result<Self> {
        let links = Arc::new(Mutex::new(Vec::new()));
        let made = Arc::clone(&links);
        let door = Door::open(SocketAddr::new(to.ip(), 0), move |from| {
            // Without a listener the connection closes, as one to a dead scheduler would.
            let _ = relay(from, to, &made);
        })?;
        Ok(Self { door, links })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.door.addr
    }

    /// Breaks every connection.
    pub(super) fn cut(&self) {
        for [a, b] in lock(&self.links).drain(..) {
            // Either may be closed already.
            let _ = (a.shutdown(Shutdown::Both), b.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Starts a thread for each direction; both end with the connection. Nothing is passed on that could not be cut.
fn relay(from: TcpStream, to: SocketAddr, links: &Mutex<Vec<[TcpStream; 2]>>) -> io::Result<()> {
    let onward = TcpStream::connect_timeout(&to, CONNECT_TIMEOUT)?;
    from.set_nodelay(true)?;
    onward.set_nodelay(true)?;
    let ways = [(from.try_clone()?, onward.try_clone()?), (onward.try_clone()?, from.try_clone()?)];
    let mut links = lock(links);
    links.retain(|ends| ends.iter().all(|end| end.peer_addr().is_ok()));
    links.push([from, onward]);
    drop(links);
    for (mut source, mut sink) in ways {
        thread::spawn(move || {
            let ended = io::copy(&mut source, &mut sink);
            let _ = (ended, source.shutdown(Shutdown::Read), sink.shutdown(Shutdown::Write));
        });
    }
    Ok(())
}

/// Has a port and answers each connection with random bytes.
#[derive(Debug)]
pub(super) struct Thief {
    _door: Door,
}

impl Thief {
    pub(super) fn start(addr: SocketAddr, seed: u64) -> io::Result<Self> {
        let mut rng = StdRng::seed_from_u64(seed);
        let door = Door::open(addr, move |mut stream| {
            let mut nonsense = [0; NONSENSE_BYTES];
            rng.fill_bytes(&mut nonsense);
            // A peer that hangs up early has understood.
            let _ = stream.write_all(&nonsense);
        })?;
        Ok(Self { _door: door })
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn local() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn a_relay_passes_on_both_ways_until_it_is_cut() {
        let upstream = TcpListener::bind(local()).unwrap();
        let relay = Relay::start(upstream.local_addr().unwrap()).unwrap();
        let mut near = TcpStream::connect(relay.addr()).unwrap();
        let (mut far, _) = upstream.accept().unwrap();
        near.write_all(b"ping").unwrap();
        let mut heard = [0; 4];
        far.read_exact(&mut heard).unwrap();
        far.write_all(b"pong").unwrap();
        near.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"pong");
        relay.cut();
        assert!(matches!(near.read(&mut heard), Ok(0) | Err(_)));
        assert!(matches!(far.read(&mut heard), Ok(0) | Err(_)));
    }

    #[test]
    fn a_relay_to_no_listener_hangs_up_and_a_thief_talks_nonsense_and_gives_the_port_back() {
        let mut failed = Vec::new();
        while let Err(error) = to_no_listener() {
            failed.push(error);
            assert!(failed.len() < 5, "{failed:?}");
        }
    }

    /// An error if another program takes the port while it is free.
    fn to_no_listener() -> io::Result<()> {
        let port = TcpListener::bind(local())?.local_addr()?;
        let relay = Relay::start(port)?;
        let mut heard = Vec::new();
        let mut near = TcpStream::connect(relay.addr())?;
        assert!(matches!(near.read_to_end(&mut heard), Ok(0) | Err(_)));
        let thief = Thief::start(port, 1)?;
        let mut victim = TcpStream::connect(port)?;
        victim.read_to_end(&mut heard)?;
        assert_eq!(heard.len(), NONSENSE_BYTES);
        drop(thief);
        TcpListener::bind(port).map(drop)
    }
}
