//! `ModelStreamInfer`: requests and answers on one call, as many at a time as on one connection. Answers come as tasks end; they
//! have the ids of their requests. A request's problem is said in its answer, and the stream goes on.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use baton_client::Nanos;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::decode::Parts;
use super::reader::framed;
use super::{Call, before_it_gives_up, encode, infer_message, status};
use crate::access::Asker;
use crate::counters::Protocol;
use crate::gateway::App;
use crate::http::answer::{Answer, outgoing};
use crate::http::body::Body;
use crate::http::calls::UnderWay;
use crate::http::connection::Activity;
use crate::http::held::Held;
use crate::http::outbound::Outbound;
use crate::protocol::deadline::Stated;
use crate::protocol::problem::Problem;

/// Answers that wait for the connection.
const WAITING: usize = 16;

/// A stream's answer: its messages come while it is read.
pub(super) fn answer(under_way: UnderWay, call: Call) -> Answer {
    let (sender, messages) = mpsc::channel(WAITING);
    tokio::spawn(serve(under_way, call, sender));
    status::answer(Outbound::messages(messages).with_trailers(status::ok(false)))
}

/// Serves a stream until its client has sent its last request and has the last answer, or is gone: then its tasks are
/// cancelled.
async fn serve(under_way: UnderWay, call: Call, sender: mpsc::Sender<Bytes>) {
    let Call { asker, arrived: began, stated, mut reader } = call;
    let (app, activity) = (Arc::clone(&under_way.app), Arc::clone(&under_way.activity));
    let most = app.limits.streams as usize;
    let mut requests = JoinSet::new();
    let mut is_open = true;
    while is_open || !requests.is_empty() {
        tokio::select! {
            message = reader.next(), if is_open && requests.len() < most => match message {
                Ok(Some(body)) => {
                    let now = app.clock.now();
                    let left = stated.after(Duration::from_nanos((now - began).0));
                    let under_way = (Arc::clone(&app), Arc::clone(&activity), asker.clone());
                    requests.spawn(one(under_way, body, now, left, sender.clone()));
                }
                Ok(None) => is_open = false,
                Err(problem) => {
                    is_open = false;
                    let message = encode::streamed_problem(&problem, String::new());
                    let _ = sender.send(bytes(&app, &activity, &message)).await;
                }
            },
            Some(_) = requests.join_next() => {}
            () = sender.closed() => return,
        }
    }
    under_way.end(Protocol::Grpc, None);
}

/// Answers one request of a stream.
async fn one(
    (app, activity, asker): (Arc<App>, Arc<Activity>, Asker),
    body: Body,
    arrived: Nanos,
    stated: Stated,
    sender: mpsc::Sender<Bytes>,
) {
    let Body { frames, held } = body;
    let (id, result) = match Parts::of(frames) {
        Ok(parts) => {
            let id = parts.rest.id.clone();
            let infer = pin!(infer_message(&app, &asker, parts, arrived, stated));
            drop(held);
            (id, before_it_gives_up(&app, arrived, stated, infer).await)
        }
        Err(problem) => (String::new(), Err(problem)),
    };
    let problem = |problem: &Problem| encode::streamed_problem(problem, id);
    app.counters.count_answer(Protocol::Grpc, result.as_ref().err().map(|problem| problem.kind));
    let message = result.map_or_else(|error| problem(&error), |answer| encode::streamed(&answer));
    // The client may be gone.
    let _ = sender.send(bytes(&app, &activity, &message)).await;
}

/// An answer's bytes, or, if there is no memory for it, that there is none.
fn bytes(app: &Arc<App>, activity: &Arc<Activity>, message: &[u8]) -> Bytes {
    let mut held = Held::new(app);
    match held.grow(message.len()) {
        Ok(()) => outgoing(app, activity, framed(message), held),
        Err(problem) => {
            let words = framed(&encode::streamed_problem(&problem, String::new()));
            let held = Held::words(app, words.len());
            outgoing(app, activity, words, held)
        }
    }
}
