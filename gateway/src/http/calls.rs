//! A request's way to its answer.

use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use baton_client::{ModelHandle, Nanos, Reply};
use bytes::{Buf as _, Bytes};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_ENCODING, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, StatusCode};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use super::answer::{self, Answer, Coding, JSON_LENGTH};
use super::body::{self, Body, Encoding};
use super::connection::Activity;
use super::frames::Frames;
use super::outbound::Outbound;
use super::stated;
use crate::access::{Asker, admit};
use crate::counters::Protocol;
use crate::gateway::App;
use crate::grpc;
use crate::image;
use crate::infer::{Allowed, Tasks, head_of, rows, submit};
use crate::memory::Memory;
use crate::protocol::deadline::Stated;
use crate::protocol::describe;
use crate::protocol::image::ImageTensor;
use crate::protocol::memory::Registration;
use crate::protocol::problem::{Kind, Problem};
use crate::protocol::render::{self, Rendered};
use crate::protocol::request::{self, Asked, Form, Wanted};
use crate::protocol::route::{Route, route};
use crate::repository;

/// A request that is not answered yet. Its client may go away: then it is dropped with its tasks.
pub(crate) struct UnderWay {
    pub(crate) app: Arc<App>,
    pub(crate) activity: Arc<Activity>,
    is_answered: bool,
}

impl UnderWay {
    fn new(app: &Arc<App>, activity: &Arc<Activity>) -> Self {
        activity.asked();
        let (app, activity) = (Arc::clone(app), Arc::clone(activity));
        Self { app, activity, is_answered: false }
    }

    /// It is answered, or has this problem.
    pub(crate) fn end(mut self, protocol: Protocol, problem: Option<&Problem>) {
        self.is_answered = true;
        self.app.counters.count_answer(protocol, problem.map(|problem| problem.kind));
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.activity.answered(self.app.clock.now());
        if !self.is_answered {
            self.app.counters.requests_abandoned.add(1);
        }
    }
}

/// An answer to come. On the heap, for HTTP/2 moves it several times.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Answers a request.
pub(crate) fn answer(
    app: &Arc<App>,
    activity: &Arc<Activity>,
    request: Request<Incoming>,
) -> Answering {
    let under_way = UnderWay::new(app, activity);
    if grpc::is_grpc(&request) {
        return grpc::answer(under_way, request);
    }
    let (head, incoming) = request.into_parts();
    match Inference::of_head(app, &head) {
        // Without the head, which shares the connection's buffer with the next request.
        Ok(Some(inference)) => Box::pin(answer_inference(under_way, inference, incoming)),
        Ok(None) => Box::pin(answer_other(under_way, head, incoming)),
        Err(problem) => Box::pin(ready(suited(ended(under_way, Err(problem)), &head))),
    }
}

/// The request is answered so.
fn ended(under_way: UnderWay, answer: Result<Answer, Problem>) -> Answer {
    let (app, activity) = (Arc::clone(&under_way.app), Arc::clone(&under_way.activity));
    under_way.end(Protocol::Http, answer.as_ref().err());
    answer.unwrap_or_else(|problem| answer::problem(&app, &activity, &problem))
}

async fn answer_inference(
    under_way: UnderWay,
    mut inference: Inference,
    incoming: Incoming,
) -> Answer {
    let answer = infer_call(&under_way, &mut inference, incoming).await;
    ended(under_way, answer)
}

async fn answer_other(under_way: UnderWay, head: Parts, incoming: Incoming) -> Answer {
    let said = other(&under_way.app, &head, incoming).await;
    let UnderWay { app, activity, .. } = &under_way;
    let answer = said.map(|said| answer::words(app, activity, &said));
    suited(ended(under_way, answer), &head)
}

/// An answer with what its request's method asks for: HEAD has GET's answer without the body.
fn suited(mut answer: Answer, head: &Parts) -> Answer {
    if answer.status() == StatusCode::METHOD_NOT_ALLOWED
        && let Ok(route) = route(head.uri.path())
    {
        let methods = if route.is_post() { "POST" } else { "GET, HEAD" };
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    }
    if head.method == Method::HEAD { answer.map(|_| Outbound::whole(Bytes::new())) } else { answer }
}

/// What a request asks for, and who asks.
fn opened<'a>(app: &App, head: &'a Parts) -> Result<(Route<'a>, Asker), Problem> {
    let route = route(head.uri.path())?;
    if let Route::NotDone(words) = route {
        return Err(Problem::new(Kind::NotDone, words));
    }
    let method = if route.is_post() { Method::POST } else { Method::GET };
    if head.method != method && (&head.method, &method) != (&Method::HEAD, &Method::GET) {
        let text = format!("{} takes {method}, not {}", head.uri.path(), head.method);
        return Err(Problem::new(Kind::Method, text));
    }
    // Probes have no token.
    let is_probe = matches!(route, Route::Live | Route::Ready);
    let asker = if is_probe { None } else { app.asker(&head.headers)? };
    Ok((route, asker))
}

/// What is said to a request that is no inference.
async fn other(app: &Arc<App>, head: &Parts, incoming: Incoming) -> Result<Value, Problem> {
    let (route, asker) = opened(app, head)?;
    let headers = &head.headers;
    match route {
        Route::Index => {
            let Index { ready } = asked(app, headers, incoming).await?;
            return Ok(describe::index(&repository::index(app, &asker, ready)));
        }
        Route::Load(name) => {
            let Change { parameters } = asked(app, headers, incoming).await?;
            if let Some(parameter) = parameters.keys().next() {
                return Err(repository::no_parameter(parameter));
            }
            repository::load(app, &asker, &name).await?;
        }
        Route::Unload(name) => {
            // `unload_dependents`, which clients send, says nothing here: no model depends on another.
            let _: Change = asked(app, headers, incoming).await?;
            repository::unload(app, &asker, &name).await?;
        }
        Route::MemoryRegister(name) => {
            let Register { key, offset, byte_size } = asked(app, headers, incoming).await?;
            let registration = Registration { name: name.into_owned(), key, offset, byte_size };
            Memory::of(&app.memory)?.register(registration)?;
        }
        route => return said(app, &asker, &route),
    }
    Ok(Value::Null)
}

/// The request to register shared memory.
#[derive(Default, Deserialize)]
struct Register {
    key: String,
    #[serde(default)]
    offset: u64,
    byte_size: u64,
}

/// The request of a repository's index.
#[derive(Default, Deserialize)]
struct Index {
    /// Only models that can be used.
    #[serde(default)]
    ready: bool,
}

/// The request to load or unload a model.
#[derive(Default, Deserialize)]
struct Change {
    #[serde(default)]
    parameters: BTreeMap<String, IgnoredAny>,
}

/// A request in JSON. A client may send nothing instead.
async fn asked<T: Default + DeserializeOwned>(
    app: &Arc<App>,
    headers: &HeaderMap,
    incoming: Incoming,
) -> Result<T, Problem> {
    let mut body = body::read(app, headers, incoming).await?;
    let all = body.frames.remaining();
    let json = body.frames.copy_to_bytes(all);
    if json.is_empty() {
        return Ok(T::default());
    }
    let asked = serde_json::from_slice(&json);
    asked.map_err(|error| Problem::invalid(format!("the JSON is no such request: {error}")))
}

/// What the gateway says of itself and its models.
fn said(app: &App, asker: &Asker, route: &Route<'_>) -> Result<Value, Problem> {
    Ok(match route {
        // Clients of KServe read the bodies of these three, others the status.
        Route::Live => json!({ "live": true }),
        Route::Ready => app.unready().map_or_else(|| Ok(json!({ "ready": true })), Err)?,
        Route::ModelReady(name) => {
            let ready = json!({ "name": app.model(asker, name)?.name(), "ready": true });
            app.unready().map_or(Ok(ready), Err)?
        }
        Route::Server => describe::server(app.memory.is_some()),
        Route::Metadata(name) => describe::metadata(&app.described(&app.model(asker, name)?)),
        Route::Config(name) => describe::config(&app.described(&app.model(asker, name)?)),
        Route::Statistics(Some(name)) => {
            app.statistics.json([app.model(asker, name)?.name()].into_iter())
        }
        Route::Statistics(None) => {
            app.statistics.json(app.models(asker).iter().map(ModelHandle::name))
        }
        Route::MemoryStatus(name) => {
            describe::regions(&Memory::of(&app.memory)?.status(name.as_deref())?)
        }
        // One that is not there is forgotten already.
        Route::MemoryUnregister(name) => {
            app.memory.as_ref().map_or(Ok(()), |memory| memory.unregister(name.as_deref()))?;
            Value::Null
        }
        // The others are answered elsewhere.
        Route::Nothing
        | Route::Index
        | Route::Load(_)
        | Route::Unload(_)
        | Route::MemoryRegister(_)
        | Route::Infer(_)
        | Route::NotDone(_) => Value::Null,
    })
}

/// What the head of a request for an inference says.
struct Inference {
    asker: Asker,
    arrived: Nanos,
    model: ModelHandle,
    stated: Stated,
    encoding: Encoding,
    /// What its body becomes if it is an image.
    image: Option<ImageTensor>,
    /// Bytes of its JSON; `None`: all of the body. No number, if it says none.
    json_bytes: Option<Option<usize>>,
    /// How its answer may be compressed.
    coding: Option<Coding>,
}

impl Inference {
    /// `None`: the request is another one.
    fn of_head(app: &App, head: &Parts) -> Result<Option<Self>, Problem> {
        let arrived = app.clock.now();
        let (Route::Infer(name), asker) = opened(app, head)? else { return Ok(None) };
        let headers = &head.headers;
        let model = app.model(&asker, &name)?;
        let is_image = image::is_image(headers);
        let number = |value: &HeaderValue| value.to_str().ok().and_then(|text| text.parse().ok());
        Ok(Some(Self {
            asker,
            arrived,
            stated: stated(headers)?,
            image: is_image.then(|| image::tensor_of(&app.images, &model)).transpose()?,
            encoding: Encoding::of(headers, CONTENT_ENCODING)?,
            json_bytes: headers.get(&JSON_LENGTH).map(number),
            coding: Coding::of(headers),
            model,
        }))
    }

    fn allowed(&self, timeout: Option<Duration>) -> Allowed {
        Allowed { arrived: self.arrived, span: self.stated.allowed(timeout, self.model.slo()) }
    }

    /// Submits the tasks of a body. While they wait there is none: the connection reads the next one to where it was.
    fn submit(&self, app: &App, mut body: Body) -> Result<(Tasks, Wanted, Allowed), Problem> {
        let json = json_of(self.json_bytes, &mut body.frames)?;
        let request = request::Request::parse(&json, &app.described(&self.model))?;
        admit(&self.asker, app.clock.now(), request.batch)?;
        let allowed = self.allowed(request.timeout);
        let tasks = submit(app, &self.model, &request, &mut body.frames, allowed)?;
        Ok((tasks, request.wanted, allowed))
    }
}

async fn infer_call(
    under_way: &UnderWay,
    inference: &mut Inference,
    incoming: Incoming,
) -> Result<Answer, Problem> {
    let UnderWay { app, activity, .. } = under_way;
    let body = body::read_as(app, inference.encoding, incoming).await?;
    let result = inferred(app, inference, body).await;
    let replies = result.as_ref().map(|(_, replies)| &replies[..]);
    app.count_inference(&inference.model, inference.arrived, replies);
    answer::tensors(app, activity, inference.coding, result?.0)
}

/// The answer, and what it is made of.
async fn inferred(
    app: &App,
    inference: &mut Inference,
    mut body: Body,
) -> Result<(Rendered, Vec<Reply>), Problem> {
    if let Some(tensor) = inference.image.take() {
        admit(&inference.asker, app.clock.now(), 1)?;
        let jpeg = body.frames.copy_to_bytes(body.frames.remaining());
        let (model, allowed) = (&inference.model, inference.allowed(None));
        let reply = Box::pin(image::infer(app, model, tensor, jpeg, allowed)).await?;
        let all = (0..model.outputs().len()).map(|index| Asked { index, form: Form::Json });
        let (all, replies): (Vec<Asked>, _) = (all.collect(), vec![reply]);
        return Ok((rendered((model, None), &all, &replies, allowed.is_over(app))?, replies));
    }
    let (mut tasks, wanted, allowed) = inference.submit(app, body)?;
    let model = &inference.model;
    let replies = tasks.replies(model, &wanted.places).await?;
    let (about, is_late) = ((model, wanted.id.as_deref()), allowed.is_over(app));
    Ok((rendered(about, &wanted.outputs, &replies, is_late)?, replies))
}

/// The JSON of a body, of as many bytes as are stated. What is left of the body is binary data.
fn json_of(stated: Option<Option<usize>>, body: &mut Frames) -> Result<Bytes, Problem> {
    let all = body.remaining();
    let bytes = stated.unwrap_or(Some(all)).filter(|&bytes| bytes <= all).ok_or_else(|| {
        let text = format!("{JSON_LENGTH} is no number of bytes up to {all}, which the body has");
        Problem::invalid(text)
    })?;
    Ok(body.copy_to_bytes(bytes))
}

fn rendered(
    (model, id): (&ModelHandle, Option<&str>),
    asked: &[Asked],
    replies: &[Reply],
    is_late: bool,
) -> Result<Rendered, Problem> {
    let head = head_of(model.name(), id, replies, is_late);
    let rows = rows(model, replies)?;
    render::infer(&head, model.outputs(), asked, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<A, F>(_: fn(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_json_ends_where_the_request_says_and_binary_data_begins() {
        let split = |stated| {
            let mut body = Frames::from(b"{}data".to_vec());
            let json = json_of(stated, &mut body);
            (json.map_err(|problem| problem.kind), body.remaining())
        };
        let cases = [(None, 6), (Some(Some(6)), 6), (Some(Some(2)), 2), (Some(Some(0)), 0)];
        for (stated, json) in cases {
            assert_eq!(split(stated), (Ok(Bytes::from(&b"{}data"[..json])), 6 - json));
        }
        for wrong in [Some(Some(7)), Some(None)] {
            assert_eq!(split(wrong), (Err(Kind::Invalid), 6), "{wrong:?}");
        }
    }

    /// Each takes as much memory while it waits for its outcome, and is moved about by HTTP/2.
    #[test]
    fn what_is_kept_of_a_request_is_small() {
        let bytes = size(|(under_way, inference, incoming)| {
            answer_inference(under_way, inference, incoming)
        });
        // Which features of other packages are built makes some difference.
        assert!(bytes <= 1_280, "{bytes} bytes");
    }
}
