//! Files that break off, and servers with TLS.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{JoinHandle, spawn};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};
use rustls::{ServerConfig, ServerConnection, Stream};

use super::*;

const CONTENT: &[u8] = b"no model, but a file of some length";
const CUT: usize = 10;

/// What a server says, and how much of the content behind it.
type Answer = (String, std::ops::Range<usize>);

/// A server on loopback that gives these answers, one connection each, and then no more. Tells what it was asked.
struct Server {
    url: String,
    asked: mpsc::Receiver<String>,
    thread: JoinHandle<()>,
}

impl Server {
    fn new(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/m.onnx", listener.local_addr().expect("it is bound"));
        let (tell, asked) = mpsc::channel();
        let thread = spawn(move || {
            for (head, content) in answers {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut request = [0; 4096];
                let read = io::Read::read(&mut stream, &mut request).unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..read]).to_lowercase();
                tell.send(request).expect("the test");
                let head = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n");
                // Who has gone does not read.
                let _ = stream.write_all(&[head.as_bytes(), &CONTENT[content]].concat());
            }
        });
        Self { url, asked, thread }
    }

    /// The requests, once all answers were given.
    fn end(self) -> Vec<String> {
        self.thread.join().expect("its answers were taken");
        self.asked.iter().collect()
    }

    /// The same where no client comes any more: answers that were not asked for go to no one, and their requests are empty.
    fn end_now(self) -> Vec<String> {
        let addr = self.url.trim_start_matches("http://").trim_end_matches("/m.onnx");
        while !self.thread.is_finished() {
            drop(TcpStream::connect(addr));
        }
        self.end()
    }
}

fn whole(more: &str, until: usize) -> Answer {
    (format!("200 OK\r\n{more}content-length: {}", CONTENT.len()), 0..until)
}

fn rest(from: usize, until: usize) -> Answer {
    let bytes = CONTENT.len();
    let range = format!("content-range: bytes {from}-{}/{bytes}", bytes - 1);
    (format!("206 Partial Content\r\n{range}\r\ncontent-length: {}", bytes - from), from..until)
}

/// A folder that goes with this.
struct Folder(PathBuf, ModelFolder);

impl Folder {
    fn new(name: &str, pause: Duration, ca: Option<PathBuf>) -> Self {
        let path = std::env::temp_dir().join(format!("baton-{}-{name}", std::process::id()));
        let spec = ModelFolderSpec { bytes: 1 << 20, ca, ..ModelFolderSpec::default() };
        let (step, whole) = (Duration::from_secs(10), Duration::from_secs(60));
        let patience = Patience { step, whole, pause };
        let folder = ModelFolder::open_with(path.clone(), &spec, patience);
        Self(path, folder.expect("it is ours"))
    }

    fn pull(&self, url: &str, expected: Option<Sha256>) -> Result<Vec<u8>, PullError> {
        let pulled = self.1.pull(url, expected, &BTreeSet::new(), &GiveUp::default())?;
        assert_eq!(pulled.bytes, CONTENT.len() as u64);
        Ok(fs::read(pulled.path).expect("it is there"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("it is ours");
    }
}

/// What became of a pull from a server with these answers, and the requests.
fn pulled(
    name: &str,
    expected: Option<Sha256>,
    answers: Vec<Answer>,
) -> (Result<Vec<u8>, PullError>, Vec<String>) {
    let (server, folder) = (Server::new(answers), Folder::new(name, Duration::ZERO, None));
    let pulled = folder.pull(&server.url, expected);
    (pulled, server.end_now())
}

#[test]
fn what_is_missing_of_a_file_that_broke_off_is_asked_for() {
    let sha256 = Some(Sha256::of(CONTENT));
    let answers = vec![whole("", CUT), rest(CUT, 20), rest(20, CONTENT.len())];
    let (pulled, asked) = pulled("resume", sha256, answers);
    assert_eq!(pulled.as_deref(), Ok(CONTENT));
    let ranges: Vec<bool> = ["range", "range: bytes=10-", "range: bytes=20-"]
        .map(|r| asked.iter().any(|a| a.contains(r)))
        .into();
    assert_eq!((ranges, asked.len()), (vec![true; 3], 3), "{asked:?}");
    assert!(!asked[0].contains("range"), "{asked:?}");
}

#[test]
fn a_server_without_ranges_sends_the_whole_again() {
    let sha256 = Some(Sha256::of(CONTENT));
    let answers = vec![whole("", CUT), whole("", CONTENT.len())];
    assert_eq!(pulled("anew", sha256, answers).0.as_deref(), Ok(CONTENT));
    let answers = vec![whole("", CUT), whole("", 5), rest(5, CONTENT.len())];
    let (pulled, asked) = pulled("anew-cut", sha256, answers);
    assert_eq!(pulled.as_deref(), Ok(CONTENT), "{asked:?}");
}

#[test]
fn of_a_file_that_is_not_known_only_the_same_version_goes_on() {
    let all = CONTENT.len();
    for (name, version, goes_on) in [
        ("etag", "etag: \"v1\"\r\n", Some("if-range: \"v1\"")),
        ("date", "last-modified: Tue, 01 Sep 2026 10:00:00 GMT\r\n", Some("if-range: tue, 01 sep")),
        ("weak", "etag: W/\"v1\"\r\n", None),
        ("none", "", None),
    ] {
        let second = if goes_on.is_some() { rest(CUT, all) } else { whole("", all) };
        let (pulled, asked) = pulled(name, None, vec![whole(version, CUT), second]);
        assert_eq!(pulled.as_deref(), Ok(CONTENT), "{name}");
        assert_eq!(asked[1].contains("range: bytes=10-"), goes_on.is_some(), "{name}: {asked:?}");
        assert!(goes_on.is_none_or(|condition| asked[1].contains(condition)), "{name}: {asked:?}");
    }
}

#[test]
fn a_rest_that_is_another_one_is_not_taken() {
    let sha256 = Some(Sha256::of(CONTENT));
    // As long as what is missing, and from the beginning.
    let bytes = CONTENT.len() - CUT;
    let range = format!("content-range: bytes 0-{}/{}", bytes - 1, CONTENT.len());
    let head = format!("206 Partial Content\r\n{range}\r\ncontent-length: {bytes}");
    let answers = vec![
        whole("", CUT),
        (head, 0..bytes),
        ("503 Service Unavailable\r\ncontent-length: 0".to_owned(), 0..0),
        ("200 OK\r\ncontent-length: 7".to_owned(), 0..7),
        rest(CUT, CONTENT.len()),
    ];
    assert_eq!(pulled("other-rest", sha256, answers).0.as_deref(), Ok(CONTENT));
}

#[test]
fn a_server_that_breaks_off_again_and_again_is_left() {
    let sha256 = Some(Sha256::of(CONTENT));
    let answers: Vec<Answer> =
        (0..5).map(|n| if n == 0 { whole("", 2) } else { rest(2 * n, 2 * n + 2) }).collect();
    let (pulled, asked) = pulled("again", sha256, answers);
    let cut = pulled.expect_err("it never came");
    assert!(matches!(cut, PullError::Cut { got_bytes: 10, .. }), "{cut}");
    assert_eq!(asked.len(), 5);
}

#[test]
fn a_pause_before_the_next_connection_ends_if_the_file_is_not_wanted() {
    let server = Server::new(vec![whole("", CUT)]);
    let folder = Folder::new("pause", Duration::from_secs(3_600), None);
    let give_up = Arc::new(GiveUp::default());
    let (url, theirs) = (server.url.clone(), Arc::clone(&give_up));
    let ended = std::thread::scope(|scope| {
        let pull = scope.spawn(|| folder.1.pull(&url, None, &BTreeSet::new(), &theirs));
        // It was asked, and answers no more.
        server.end();
        give_up.set();
        pull.join().expect("it does not panic")
    });
    assert_eq!(ended, Err(PullError::GivenUp));
}

/// An authority, and what a server shows that it has signed.
fn authority() -> (String, Arc<ServerConfig>) {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"));
    let ca = ca.expect("it signs itself");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address");
    let certificate = params.signed_by(&key, &ca).expect("signed");
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key);
    (ca.pem(), Arc::new(config.expect("they belong together")))
}

/// Serves the file to one client over TLS. Returns whether the client took it.
fn secure(config: Arc<ServerConfig>) -> (String, JoinHandle<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("https://{}/m.onnx", listener.local_addr().expect("it is bound"));
    let serve = move || {
        let mut tcp: TcpStream = listener.accept().expect("a client").0;
        let mut tls = ServerConnection::new(config).expect("it is sound");
        let mut stream = Stream::new(&mut tls, &mut tcp);
        let mut request = [0; 4096];
        if io::Read::read(&mut stream, &mut request).is_err() {
            return false;
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", CONTENT.len());
        stream.write_all(&[head.as_bytes(), CONTENT].concat()).is_ok()
    };
    (url, spawn(serve))
}

#[test]
fn over_tls_only_a_server_of_the_authority_is_believed() {
    let ((pem, config), (other, _)) = (authority(), authority());
    let place =
        |name: &str| std::env::temp_dir().join(format!("baton-{}-{name}", std::process::id()));
    let (ca, stranger, empty) = (place("ca.pem"), place("other-ca.pem"), place("no-ca.pem"));
    for (file, text) in [(&ca, &pem[..]), (&stranger, &other[..]), (&empty, "nothing\n")] {
        fs::write(file, text).expect("it is ours");
    }
    let pull = |name: &str, ca: &PathBuf| {
        let (url, served) = secure(Arc::clone(&config));
        let pulled = Folder::new(name, Duration::ZERO, Some(ca.clone())).pull(&url, None);
        (pulled, url, served)
    };
    let (pulled, _, served) = pull("tls", &ca);
    assert_eq!(pulled.as_deref(), Ok(CONTENT));
    assert!(served.join().expect("it does not panic"));
    let (pulled, url, served) = pull("tls-stranger", &stranger);
    let said = pulled.expect_err("another authority").to_string();
    assert!(said.contains(&url) && said.to_lowercase().contains("certificate"), "{said}");
    assert!(!served.join().expect("it does not panic"));
    let (pulled, url, served) = pull("tls-empty", &empty);
    let said = pulled.expect_err("no authority").to_string();
    assert!(said.contains("no certificate in PEM") && said.contains("model_ca"), "{said}");
    // The server was not even asked.
    drop(TcpStream::connect(url.trim_start_matches("https://").trim_end_matches("/m.onnx")));
    assert!(!served.join().expect("it does not panic"));
    [ca, stranger, empty].iter().for_each(|file| fs::remove_file(file).expect("it is ours"));
}
