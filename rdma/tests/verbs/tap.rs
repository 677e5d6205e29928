//! A wire between a backend and a frontend that remembers what crossed it in clear, or spoils it.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use baton_rdma::frame::HEADER_LEN;
use baton_rdma::wire::{FrameHeader, Kind};
use zerocopy::FromBytes as _;

/// Changes the body of a frame that the frontend says.
pub(crate) type Spoil = fn(Kind, &mut [u8]);

/// Leads one connection to a frontend.
pub(crate) struct Tap {
    /// Where the backend is to connect.
    pub(crate) addr: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    /// Whole frames go through `spoil`, which needs them in clear.
    pub(crate) fn new(to: SocketAddr, spoil: Option<Spoil>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<u8>>>::default();
        let kept = Arc::clone(&seen);
        // Ends with the connection, of which there is one.
        thread::spawn(move || {
            let (near, far) = (listener.accept().unwrap().0, TcpStream::connect(to).unwrap());
            let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let also_kept = Arc::clone(&kept);
            thread::spawn(move || carry(near_too, far_too, None, &also_kept));
            carry(far, near, spoil, &kept);
        });
        Self { addr, seen }
    }

    /// Whether these bytes crossed in clear, either way.
    pub(crate) fn saw(&self, text: &str) -> bool {
        self.seen.lock().unwrap().windows(text.len()).any(|piece| piece == text.as_bytes())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, spoil: Option<Spoil>, seen: &Mutex<Vec<u8>>) {
    let (mut piece, mut held) = ([0; 16 * 1024], Vec::new());
    while let Ok(n @ 1..) = from.read(&mut piece) {
        seen.lock().unwrap().extend_from_slice(&piece[..n]);
        held.extend_from_slice(&piece[..n]);
        let whole = spoil.map_or(held.len(), |spoil| spoil_frames(&mut held, spoil));
        if to.write_all(&held[..whole]).is_err() {
            break;
        }
        held.drain(..whole);
    }
    let _gone_already = to.shutdown(Shutdown::Both);
}

/// How many bytes are whole frames.
fn spoil_frames(bytes: &mut [u8], spoil: Spoil) -> usize {
    let mut at = 0;
    while let Ok((header, _)) = FrameHeader::read_from_prefix(&bytes[at..]) {
        let body = at + HEADER_LEN;
        let payload = body + usize::from(header.body_len.get());
        let end = payload + header.payload_len.get() as usize;
        if end > bytes.len() {
            break;
        }
        spoil(header.check().unwrap(), &mut bytes[body..payload]);
        at = end;
    }
    at
}
