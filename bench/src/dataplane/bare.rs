//! The same pull over bare sockets: a request of eight bytes, an object back, nothing else. What a
//! transport over TCP cannot beat.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use super::{Pull, PullError};

/// Bytes of a request.
const REQUEST: usize = 8;
/// Objects in a stretch of a stream, per object under way.
pub(super) const STRETCH: u32 = 8;

/// The puller's ends, and one object.
pub(super) struct Bare {
    sockets: Vec<TcpStream>,
    objects: u32,
    object: Vec<u8>,
}

impl Bare {
    pub(super) fn start(pull: &Pull) -> Result<Self, PullError> {
        let system = |source| PullError::System { what: "the bare loop's sockets", source };
        let sockets: io::Result<Vec<_>> = (0..pull.senders).map(|_| sender(pull.bytes)).collect();
        let object = vec![0; pull.bytes as usize];
        Ok(Self { sockets: sockets.map_err(system)?, objects: pull.objects, object })
    }

    /// All objects of all senders, asked for at once. Returns how many.
    pub(super) fn round(&mut self) -> Result<u64, PullError> {
        let ask = vec![0; REQUEST * self.objects as usize];
        let moved = self.sockets.iter_mut().try_for_each(|socket| socket.write_all(&ask));
        let system = |source| PullError::System { what: "the bare loop", source };
        moved.and_then(|()| self.take(self.objects)).map_err(system)
    }

    /// A stretch of a stream: as many objects under way as in a round, several times over.
    pub(super) fn stream(&mut self) -> Result<u64, PullError> {
        let system = |source| PullError::System { what: "the bare loop", source };
        let mut moved = 0;
        let first = vec![0; REQUEST * self.objects as usize];
        for socket in &mut self.sockets {
            socket.write_all(&first).map_err(system)?;
        }
        for turn in 1..=STRETCH * self.objects {
            moved += self.take(1).map_err(system)?;
            if turn <= (STRETCH - 1) * self.objects {
                for socket in &mut self.sockets {
                    socket.write_all(&[0; REQUEST]).map_err(system)?;
                }
            }
        }
        Ok(moved)
    }

    fn take(&mut self, each: u32) -> io::Result<u64> {
        for _ in 0..each {
            for socket in &mut self.sockets {
                socket.read_exact(&mut self.object)?;
            }
        }
        Ok(u64::from(each) * self.sockets.len() as u64)
    }
}

/// A thread that answers each request with an object; the puller's end of its connection.
fn sender(bytes: u32) -> io::Result<TcpStream> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let (mut theirs, _) = listener.accept()?;
    ours.set_nodelay(true)?;
    theirs.set_nodelay(true)?;
    let serve = move || {
        let (object, mut request) = (vec![7; bytes as usize], [0; REQUEST]);
        // Ends when the puller hangs up.
        while theirs.read_exact(&mut request).is_ok() && theirs.write_all(&object).is_ok() {}
    };
    thread::Builder::new().name("bare-sender".into()).spawn(serve)?;
    Ok(ours)
}
