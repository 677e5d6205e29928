use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;

use baton_topo::Waker;

use super::super::{Brought, ModelPulls};
use super::*;

const CONTENT: &[u8] = b"no model, but a file";

/// What a server does with each request.
type Answer = fn(&mut TcpStream);

/// A server on loopback, and the paths that it was asked for. It ends with the last `answers`.
struct Server {
    url: String,
    asked: mpsc::Receiver<String>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn new(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/model.onnx", listener.local_addr().expect("it is bound"));
        let (tell, asked) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut head = [0; 4096];
                let read = stream.read(&mut head).expect("a request");
                let line = String::from_utf8_lossy(&head[..read]);
                tell.send(line.lines().next().unwrap_or_default().to_owned()).expect("the test");
                answer(&mut stream);
            }
        });
        Self { url, asked, thread: Some(thread) }
    }

    fn requests(&self) -> usize {
        self.asked.try_iter().count()
    }

    fn end(mut self) {
        self.thread.take().expect("once").join().expect("its answers were taken");
    }
}

fn send(stream: &mut TcpStream, head: &str, body: &[u8]) {
    let answer =
        [format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n").as_bytes(), body].concat();
    // Who has given up does not read.
    let _ = stream.write_all(&answer);
}

fn whole(stream: &mut TcpStream) {
    send(stream, &format!("200 OK\r\ncontent-length: {}", CONTENT.len()), CONTENT);
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("baton-{}-{name}", std::process::id()))
}

fn open(path: &Path, bytes: u64) -> ModelFolder {
    let (step, whole) = (Duration::from_millis(300), Duration::from_secs(20));
    let patience = Patience { step, whole, pause: Duration::ZERO };
    let spec = ModelFolderSpec { bytes, ..ModelFolderSpec::default() };
    ModelFolder::open_with(path.to_owned(), &spec, patience).expect("it is ours")
}

fn pull(folder: &ModelFolder, url: &str, expected: Option<Sha256>) -> Result<Pulled, PullError> {
    folder.pull(url, expected, &BTreeSet::new(), &GiveUp::default())
}

/// What is in the folder beside the lock.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("it is there");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> =
        names.map(|name| name.into_string().expect("plain")).filter(|n| n != "lock").collect();
    names.sort();
    names
}

#[test]
fn a_file_is_pulled_once_and_again_only_if_it_has_changed() {
    let (path, sha256) = (path("pull-once"), Sha256::of(CONTENT));
    let server = Server::new(vec![whole, whole]);
    let folder = open(&path, 1 << 20);
    let first = pull(&folder, &server.url, Some(sha256)).expect("it is right");
    assert_eq!(fs::read(&first.path).expect("it is there"), CONTENT);
    assert_eq!((first.bytes, names(&path)), (CONTENT.len() as u64, vec![format!("{sha256}.onnx")]));
    let again = pull(&folder, &server.url, Some(sha256)).expect("it is here");
    assert_eq!((again.bytes, &again.path, server.requests()), (0, &first.path, 1));
    fs::write(&first.path, b"changed").expect("it is ours");
    let anew = pull(&folder, &server.url, Some(sha256)).expect("it is pulled anew");
    assert_eq!((anew.bytes, server.requests()), (CONTENT.len() as u64, 1));
    assert_eq!(fs::read(&first.path).expect("it is there"), CONTENT);
    server.end();
    fs::remove_dir_all(path).expect("it is ours");
}

#[test]
fn whatever_a_server_does_wrong_is_named_and_leaves_nothing_behind() {
    fn missing(stream: &mut TcpStream) {
        send(stream, "404 Not Found\r\ncontent-length: 0", b"");
    }
    fn endless(stream: &mut TcpStream) {
        send(stream, "200 OK", CONTENT);
    }
    fn huge(stream: &mut TcpStream) {
        send(stream, "200 OK\r\ncontent-length: 3000000000", CONTENT);
    }
    fn cut(stream: &mut TcpStream) {
        send(stream, "200 OK\r\ncontent-length: 1000", CONTENT);
    }
    fn silent(stream: &mut TcpStream) {
        // Until the client has gone.
        let _ = stream.read(&mut [0; 1]);
    }
    fn hangs(stream: &mut TcpStream) {
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nno m";
        stream.write_all(head).expect("the client is there");
        silent(stream);
    }
    fn elsewhere(stream: &mut TcpStream) {
        send(stream, "302 Found\r\nlocation: ftp://127.0.0.1/x\r\ncontent-length: 0", b"");
    }
    let path = path("pull-wrong");
    let cases: [(Answer, &str); 8] = [
        (missing, "status 404"),
        (endless, "does not say how long"),
        (huge, "3000000000 bytes, and an ONNX file has 2 GiB at most"),
        (cut, "20 of 1000 bytes came"),
        (silent, "takes too long"),
        (hangs, "4 of 1000 bytes came (timeout"),
        (elsewhere, "cannot be pulled"),
        (whole, "its SHA-256 is"),
    ];
    for (answer, said) in cases {
        let server = Server::new(vec![answer]);
        let folder = open(&path, 1 << 20);
        let error = pull(&folder, &server.url, Some(Sha256::of(b"another"))).expect_err(said);
        let error = error.to_string();
        assert!(error.contains(said) && error.contains(&server.url), "{said}: {error}");
        assert_eq!(names(&path), Vec::<String>::new(), "{said}");
        server.end();
    }
    fs::remove_dir_all(path).expect("it is ours");
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let path = path("pull-nobody");
    let folder = open(&path, 1 << 20);
    let refused = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
    let url = format!("http://{refused}/model.onnx");
    assert!(matches!(pull(&folder, &url, None), Err(PullError::Away { .. })));
    fs::remove_dir_all(path).expect("it is ours");
}

/// A file of ten bytes, and when it came.
fn pulled_at(folder: &Path, name: &str, seconds: u64) -> PathBuf {
    let file = folder.join(name);
    fs::write(&file, [0; 10]).expect("it is ours");
    let written = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let opened = File::options().append(true).open(&file);
    opened.and_then(|f| f.set_modified(written)).expect("ours");
    file
}

#[test]
fn no_more_goes_than_must_and_what_was_pulled_last_stays() {
    let path = path("pull-order");
    let folder = open(&path, 40);
    let files = [("b.onnx", 30), ("c.onnx", 10), ("a.onnx", 20)];
    let files = files.map(|(name, seconds)| pulled_at(&path, name, seconds));
    folder.make_room(20, &BTreeSet::new()).expect("of 30 bytes");
    assert_eq!(files.map(|file| file.exists()), [true, false, true]);
    fs::remove_dir_all(path).expect("it is ours");
}

#[test]
fn what_was_pulled_longest_ago_goes_for_a_new_one_and_what_is_in_use_stays() {
    let path = path("pull-room");
    let folder = open(&path, 30);
    let [oldest, older, recent] =
        [("a.onnx", 10), ("b.onnx", 20), ("c.onnx", 30)].map(|(n, s)| pulled_at(&path, n, s));
    let server = Server::new(vec![whole, whole]);
    let sha256 = Sha256::of(CONTENT);
    let in_use = BTreeSet::from([oldest.clone(), older.clone()]);
    let pull = |in_use| folder.pull(&server.url, Some(sha256), in_use, &GiveUp::default());
    let full = pull(&in_use).expect_err("20 of 30 bytes are in use");
    assert!(matches!(full, PullError::Full { needs_bytes: 20, free_bytes: 10, .. }), "{full}");
    assert_eq!(names(&path), ["a.onnx", "b.onnx"], "it was tried");
    pull(&BTreeSet::from([oldest])).expect("there is room beside it");
    assert_eq!(names(&path).len(), 2);
    assert!(!older.exists() && !recent.exists());
    server.end();
    fs::remove_dir_all(path).expect("it is ours");
}

#[test]
fn a_pull_that_is_given_up_ends_with_the_next_bytes() {
    let path = path("pull-given-up");
    let (server, folder) = (Server::new(vec![whole]), open(&path, 1 << 20));
    let give_up = GiveUp::default();
    give_up.set();
    let ended = folder.pull(&server.url, None, &BTreeSet::new(), &give_up);
    assert_eq!((ended, names(&path)), (Err(PullError::GivenUp), vec![]));
    server.end();
    fs::remove_dir_all(path).expect("it is ours");
}

#[test]
fn a_full_disk_is_named_and_what_was_written_goes() {
    let path = path("pull-disk");
    let (server, folder) = (Server::new(vec![whole]), open(&path, 1 << 20));
    let part = Part::new(&folder.path).expect("it is ours");
    let full = File::options().write(true).open("/dev/full").expect("Linux has it");
    let part = Part { file: full, path: part.path.clone() };
    let download = Download::begin(&server.url, None, folder.patience).expect("it is there");
    let error = part.write(download, false, &GiveUp::default()).expect_err("no byte fits");
    assert!(error.to_string().contains("No space left"), "{error}");
    drop(part);
    assert_eq!(names(&path), Vec::<String>::new());
    server.end();
    fs::remove_dir_all(path).expect("it is ours");
}

#[test]
fn one_process_has_the_folder_and_what_a_killed_one_left_unfinished_goes() {
    let path = path("pull-taken");
    let first = open(&path, 1 << 20);
    fs::write(path.join("7.part"), b"half").expect("it is ours");
    let spec = ModelFolderSpec::default();
    let second = ModelFolder::open(path.clone(), &spec).expect_err("the first one has it");
    assert_eq!((second, names(&path).len()), (PullError::Taken { folder: path.clone() }, 1));
    drop(first);
    let third = open(&path, 1 << 20);
    assert_eq!(names(&path), Vec::<String>::new());
    drop(third);
    fs::remove_dir_all(path).expect("it is ours");
}

/// The table of a model whose file the server has.
fn table(url: &str) -> String {
    format!(
        "[[model]]\nname = \"new\"\nfile = \"{url}\"\nsha256 = \"{}\"\nfile_bytes = {}\n\
         tensors = [\"in f32[batch, 2] x\", \"out f32[batch, 2] y\"]\nslo_ms = 25\nbatch_max = 8\n",
        Sha256::of(CONTENT),
        CONTENT.len()
    )
}

/// Pulls of a backend with this folder, and one whose owner sleeps: what tells that it is woken.
fn begun(path: &Path, url: &str) -> (ModelPulls, mpsc::Receiver<()>) {
    let spec = ModelFolderSpec { path: Some(path.to_owned()), ..ModelFolderSpec::default() };
    let mut pulls = ModelPulls::new(spec, "b");
    let (wake, woken) = mpsc::sync_channel(1);
    let owner = Waker::new(move || _ = wake.try_send(()));
    owner.prepare_sleep();
    pulls.begin(&table(url), BTreeSet::new(), false, owner);
    (pulls, woken)
}

#[test]
fn who_has_begun_a_pull_is_woken_at_its_end() {
    let path = path("pull-wakes");
    let server = Server::new(vec![whole]);
    let (mut pulls, woken) = begun(&path, &server.url);
    woken.recv().expect("it ends");
    let bytes = CONTENT.len() as u64;
    assert_eq!(pulls.poll(), Some(Ok(Brought { files: 1, bytes })));
    server.end();
    fs::remove_dir_all(path).expect("it is ours");
}

/// The server goes on only then.
#[test]
fn what_was_begun_and_is_not_wanted_is_not_pulled() {
    static GIVEN_UP: std::sync::Barrier = std::sync::Barrier::new(2);
    fn late(stream: &mut TcpStream) {
        GIVEN_UP.wait();
        whole(stream);
    }
    let path = path("pull-not-wanted");
    let server = Server::new(vec![late]);
    let (mut pulls, woken) = begun(&path, &server.url);
    server.asked.recv().expect("it is asked");
    pulls.give_up();
    GIVEN_UP.wait();
    woken.recv().expect("it ends");
    assert_eq!((pulls.poll(), names(&path)), (None, vec![]));
    server.end();
    fs::remove_dir_all(path).expect("it is ours");
}
