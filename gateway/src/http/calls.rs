//! A request's way to its answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_client::{ModelHandle, Reply};
use bytes::{Buf as _, Bytes};
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use super::answer::{self, Answer, JSON_LENGTH};
use super::body::{self, Body};
use super::connection::Activity;
use crate::access::{Asker, admit};
use crate::counters::Protocol;
use crate::gateway::App;
use crate::grpc;
use crate::image;
use crate::infer::{Allowed, head_of, infer, rows};
use crate::memory::Memory;
use crate::protocol::deadline::Stated;
use crate::protocol::describe;
use crate::protocol::memory::Registration;
use crate::protocol::problem::{Kind, Problem};
use crate::protocol::render::{self, Rendered};
use crate::protocol::request::{self, Asked, Form};
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

/// Answers a request.
pub(crate) async fn answer(
    app: &Arc<App>,
    activity: &Arc<Activity>,
    request: Request<Incoming>,
) -> Answer {
    let under_way = UnderWay::new(app, activity);
    if grpc::is_grpc(&request) {
        return grpc::answer(under_way, request).await;
    }
    let answer = call(app, activity, request).await;
    under_way.end(Protocol::Http, answer.as_ref().err());
    answer.unwrap_or_else(|problem| answer::problem(app, activity, &problem))
}

async fn call(
    app: &Arc<App>,
    activity: &Arc<Activity>,
    request: Request<Incoming>,
) -> Result<Answer, Problem> {
    let (head, incoming) = request.into_parts();
    let route = route(head.uri.path())?;
    if let Route::NotDone(words) = route {
        return Err(Problem::new(Kind::NotDone, words));
    }
    let method = if route.is_post() { Method::POST } else { Method::GET };
    if head.method != method {
        let text = format!("{} takes {method}, not {}", head.uri.path(), head.method);
        return Err(Problem::new(Kind::Method, text));
    }
    // Probes have no token.
    let is_probe = matches!(route, Route::Live | Route::Ready);
    let asker = if is_probe { None } else { app.asker(&head.headers)? };
    match route {
        Route::Infer(name) => {
            infer_call(app, activity, &asker, &name, &head.headers, incoming).await
        }
        Route::Index => {
            let Index { ready } = asked(app, &head.headers, incoming).await?;
            let models = repository::index(app, &asker, ready);
            Ok(answer::words(app, activity, &describe::index(&models)))
        }
        Route::Load(name) => {
            let Change { parameters } = asked(app, &head.headers, incoming).await?;
            if let Some(parameter) = parameters.keys().next() {
                return Err(repository::no_parameter(parameter));
            }
            repository::load(app, &asker, &name).await?;
            Ok(answer::words(app, activity, &Value::Null))
        }
        Route::Unload(name) => {
            // `unload_dependents`, which clients send, says nothing here: no model depends on another.
            let _: Change = asked(app, &head.headers, incoming).await?;
            repository::unload(app, &asker, &name).await?;
            Ok(answer::words(app, activity, &Value::Null))
        }
        Route::MemoryRegister(name) => {
            let Register { key, offset, byte_size } = asked(app, &head.headers, incoming).await?;
            let registration = Registration { name: name.into_owned(), key, offset, byte_size };
            Memory::of(&app.memory)?.register(registration)?;
            Ok(answer::words(app, activity, &Value::Null))
        }
        route => Ok(answer::words(app, activity, &said(app, &asker, &route)?)),
    }
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
        Route::Ready => app.unready().map_or(Ok(Value::Null), Err)?,
        Route::ModelReady(name) => {
            app.model(asker, name)?;
            app.unready().map_or(Ok(Value::Null), Err)?
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
        Route::Live
        | Route::Nothing
        | Route::Index
        | Route::Load(_)
        | Route::Unload(_)
        | Route::MemoryRegister(_)
        | Route::Infer(_)
        | Route::NotDone(_) => Value::Null,
    })
}

async fn infer_call(
    app: &Arc<App>,
    activity: &Arc<Activity>,
    asker: &Asker,
    name: &str,
    headers: &HeaderMap,
    incoming: Incoming,
) -> Result<Answer, Problem> {
    let arrived = app.clock.now();
    let model = app.model(asker, name)?;
    let stated =
        Stated::of(|name| headers.get(name).map(|value| value.to_str().unwrap_or("no text")))?;
    let image =
        image::is_image(headers).then(|| image::tensor_of(&app.images, &model)).transpose()?;
    let mut body = body::read(app, headers, incoming).await?;
    let result = async {
        if let Some(tensor) = image {
            admit(asker, app.clock.now(), 1)?;
            let allowed = Allowed { arrived, span: stated.allowed(None, model.slo()) };
            let jpeg = body.frames.copy_to_bytes(body.frames.remaining());
            let replies = vec![image::infer(app, &model, tensor, jpeg, allowed).await?];
            let all = (0..model.outputs().len()).map(|index| Asked { index, form: Form::Json });
            let all: Vec<Asked> = all.collect();
            return Ok((rendered(&model, None, &all, &replies)?, replies));
        }
        let json = json_of(headers, &mut body)?;
        let request = request::Request::parse(&json, &app.described(&model))?;
        admit(asker, app.clock.now(), request.batch)?;
        let allowed = Allowed { arrived, span: stated.allowed(request.timeout, model.slo()) };
        let replies = infer(app, &model, &request, &mut body.frames, allowed).await?;
        let id = request.id.as_deref();
        let rendered = rendered(&model, id, &request.outputs, &replies)?;
        Ok((rendered, replies))
    };
    let result = result.await;
    let took = app.clock.now() - arrived;
    match result {
        Ok((rendered, replies)) => {
            app.statistics.answered(model.name(), took, &replies);
            answer::tensors(app, activity, headers, rendered)
        }
        Err(problem) => {
            app.statistics.failed(model.name(), took);
            Err(problem)
        }
    }
}

/// The JSON of a body. What is left of the body is binary data.
fn json_of(headers: &HeaderMap, body: &mut Body) -> Result<Bytes, Problem> {
    let all = body.frames.remaining();
    let Some(stated) = headers.get(&JSON_LENGTH) else {
        return Ok(body.frames.copy_to_bytes(all));
    };
    let stated = stated.to_str().ok().and_then(|text| text.parse().ok());
    let bytes = stated.filter(|&bytes: &usize| bytes <= all).ok_or_else(|| {
        let text = format!("{JSON_LENGTH} is no number of bytes up to {all}, which the body has");
        Problem::invalid(text)
    })?;
    Ok(body.frames.copy_to_bytes(bytes))
}

fn rendered(
    model: &ModelHandle,
    id: Option<&str>,
    asked: &[Asked],
    replies: &[Reply],
) -> Result<Rendered, Problem> {
    let head = head_of(model.name(), id, replies);
    let rows = rows(model, replies)?;
    render::infer(&head, model.outputs(), asked, &rows)
}
