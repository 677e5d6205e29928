//! A file server: it sends one model file to everyone who asks, but does to some what the test wants.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What becomes of a request.
#[derive(Clone)]
pub(crate) enum Answer {
    /// This content.
    File(Vec<u8>),
    /// It says that this many bytes come, sends these, and ends.
    Cut(usize, Vec<u8>),
    /// The same, but it does not end as long as the client is there.
    Hang(usize, Vec<u8>),
}

/// See the module documentation. Nothing listens any more once it is dropped.
pub(crate) struct FileServer {
    addr: String,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    file: Vec<u8>,
    /// By path: what the first gets who asks for it, and what the others.
    others: BTreeMap<String, [Answer; 2]>,
    /// By path: how many have asked.
    asked: BTreeMap<String, usize>,
    is_gone: bool,
}

impl FileServer {
    pub(crate) fn new(file: Vec<u8>) -> Self {
        Self::at("127.0.0.1:0", file)
    }

    /// One where another was: the standard library lets the address be used again.
    pub(crate) fn at(addr: &str, file: Vec<u8>) -> Self {
        let listener = TcpListener::bind(addr).unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let (others, asked) = (BTreeMap::new(), BTreeMap::new());
        let shared = Arc::new(Mutex::new(Shared { file, others, asked, is_gone: false }));
        let ours = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if ours.lock().unwrap().is_gone {
                    break;
                }
                let ours = Arc::clone(&ours);
                thread::spawn(move || serve(stream.unwrap(), &ours));
            }
        });
        Self { addr, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/m.onnx", self.addr)
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    /// A URL where the first who asks gets this file, and the others something else.
    pub(crate) fn url_of(&self, name: &str, first: Vec<u8>, others: Answer) -> String {
        let path = format!("/{name}.onnx");
        let answers = [Answer::File(first), others];
        self.shared.lock().unwrap().others.insert(path.clone(), answers);
        format!("http://{}{path}", self.addr)
    }

    /// How often it was asked for this URL.
    pub(crate) fn requests(&self, url: &str) -> usize {
        let path = url.rsplit_once(&self.addr).unwrap().1;
        self.shared.lock().unwrap().asked.get(path).copied().unwrap_or(0)
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.shared.lock().unwrap().is_gone = true;
        drop(TcpStream::connect(&self.addr));
    }
}

fn serve(mut stream: TcpStream, shared: &Mutex<Shared>) {
    let mut head = [0; 4096];
    let read = stream.read(&mut head).unwrap_or(0);
    let head = String::from_utf8_lossy(&head[..read]);
    let Some(path) = head.split(' ').nth(1) else { return };
    let answer = {
        let mut shared = shared.lock().unwrap();
        let asked = shared.asked.entry(path.to_owned()).or_default();
        *asked += 1;
        let which = usize::from(*asked > 1);
        let own = shared.others.get(path).map(|answers| answers[which].clone());
        own.unwrap_or_else(|| Answer::File(shared.file.clone()))
    };
    answer.give(&mut stream);
}

impl Answer {
    fn give(self, stream: &mut TcpStream) {
        let (length, content) = match &self {
            Self::File(content) => (content.len(), content),
            Self::Cut(length, content) | Self::Hang(length, content) => (*length, content),
        };
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
        // A client that has heard enough does not read on.
        let _ = stream.write_all(&[head.as_bytes(), content].concat());
        if matches!(self, Self::Hang(..)) {
            let _ = stream.read(&mut [0; 1]);
        }
    }
}
