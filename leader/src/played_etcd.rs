//! An etcd that a test plays: it takes each question as it arrives, and the test answers it, or hangs up.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use baton_topo::EtcdSpec;
use crossbeam_channel::{Receiver, unbounded};
use serde_json::Value;

/// A question that has not come by then does not come.
pub(crate) const LONG: Duration = Duration::from_secs(10);

pub(crate) struct PlayedEtcd {
    pub(crate) endpoint: String,
    questions: Receiver<Question>,
}

/// Dropped without an answer, it hangs up.
pub(crate) struct Question {
    stream: TcpStream,
    pub(crate) path: String,
    pub(crate) body: Value,
}

impl PlayedEtcd {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (arrived, questions) = unbounded();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if arrived.send(Question::read(stream)).is_err() {
                    break;
                }
            }
        });
        Self { endpoint, questions }
    }

    pub(crate) fn spec(&self, lease_ttl_s: u32) -> EtcdSpec {
        let endpoints = vec![self.endpoint.clone()];
        EtcdSpec { endpoints, prefix: "/baton/x".into(), lease_ttl_s, tls: None }
    }

    /// The next question.
    pub(crate) fn next(&self) -> Question {
        self.questions.recv_timeout(LONG).expect("no question comes")
    }

    /// The next question, which is this one. Returns its body.
    pub(crate) fn answer(&self, path: &str, reply: &str) -> Value {
        let question = self.next();
        assert_eq!(question.path, path, "{}", question.body);
        question.answer("200 OK", reply)
    }
}

impl Question {
    /// Its body is JSON, so it ends with a brace.
    fn read(mut stream: TcpStream) -> Self {
        let mut text = Vec::new();
        while text.last() != Some(&b'}') {
            let mut piece = [0; 4096];
            let read = stream.read(&mut piece).unwrap();
            assert!(read > 0, "half a request");
            text.extend_from_slice(&piece[..read]);
        }
        let text = String::from_utf8(text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let path = head.split(' ').nth(1).unwrap().to_owned();
        Self { path, body: serde_json::from_str(body).unwrap(), stream }
    }

    pub(crate) fn answer(mut self, status: &str, reply: &str) -> Value {
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            reply.len()
        );
        // Who has given up does not read it.
        let _ = self.stream.write_all(format!("{head}{reply}").as_bytes());
        self.body
    }

    /// What stands under the leader's key.
    pub(crate) fn held_by(self, value: Option<&str>) {
        self.answer("200 OK", &held(value));
    }
}

/// etcd's words for what stands under the leader's key.
pub(crate) fn held(value: Option<&str>) -> String {
    let entry = value.map(|value| {
        let value = BASE64.encode(value);
        format!(r#","kvs":[{{"create_revision":"2","value":"{value}","lease":"7"}}]"#)
    });
    format!(r#"{{"header":{{}}{}}}"#, entry.unwrap_or_default())
}
