//! An inference whose input is a JPEG: the task is submitted first, and the image is decoded while it queues.
//!
//! Each of the gateway's threads has one more that decodes. What waits for it is bounded by the slots of the models. A task that
//! has its outcome before its image is decoded, or whose client goes away, takes its image out of the line.

use baton_client::{Deadline, DropReason, ModelHandle, Outcome, Reply};
use bytes::{Buf, Bytes};
use hyper::HeaderMap;
use hyper::header::CONTENT_TYPE;
use tokio::task::JoinSet;

use crate::gateway::App;
use crate::infer::{Allowed, ended};
use crate::protocol::image::{ImageStep, ImageTensor, take_from};
use crate::protocol::problem::{Given, Kind, Problem};
use crate::protocol::request::Written;

/// The media type of such a request.
const JPEG: &str = "image/jpeg";

/// Whether a request's body is an image.
pub(crate) fn is_image(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes() == JPEG.as_bytes())
}

/// What an image becomes for this model.
///
/// # Errors
/// The cluster file says nothing of it, or what does not fit the model.
pub(crate) fn tensor_of(steps: &[ImageStep], model: &ModelHandle) -> Result<ImageTensor, Problem> {
    let step = steps.iter().find(|step| step.model == model.name()).ok_or_else(|| {
        let text =
            format!("{} takes no images: see [[gateway.image]] of the cluster file", model.name());
        Problem::new(Kind::Encoding, text)
    })?;
    ImageTensor::of(step, model.inputs()).map_err(|text| Problem::new(Kind::Internal, text))
}

/// The image that a request has as a tensor, and what it becomes; `None`: the request has none, or its model takes none.
///
/// # Errors
/// See [`tensor_of`] and [`take_from`].
pub(crate) fn in_request(
    steps: &[ImageStep],
    model: &ModelHandle,
    written: &mut Written<'_>,
    binary: &mut impl Buf,
) -> Result<Option<(ImageTensor, Bytes)>, Problem> {
    if !steps.iter().any(|step| step.model == model.name()) {
        return Ok(None);
    }
    let jpeg = take_from(written, binary, model.inputs()).map_err(Problem::invalid)?;
    if written.outputs.iter().any(|output| output.shared.is_some()) && jpeg.is_some() {
        let text = "outputs of an image travel in the answer: leave shared memory out";
        return Err(Problem::new(Kind::NotDone, text));
    }
    jpeg.map(|jpeg| Ok((tensor_of(steps, model)?, jpeg))).transpose()
}

/// Executes a request of one image.
pub(crate) async fn infer(
    app: &App,
    model: &ModelHandle,
    tensor: ImageTensor,
    jpeg: Bytes,
    allowed: Allowed,
) -> Result<Reply, Problem> {
    // 1. The task queues from here.
    let input = model.input().map_err(|error| Problem::no_input(&error, model.slo()))?;
    let submitted = input.submit_ahead(Deadline::Within(allowed.left(app)?));
    let (mut input, mut ticket) =
        submitted.map_err(|error| Problem::not_submitted(error.reason, allowed.span))?;
    // 2. Meanwhile its input is written. Dropped, the set takes what has not begun out of the line.
    let mut decoding = JoinSet::new();
    decoding.spawn_blocking(move || {
        tensor.write(&jpeg, &mut input)?;
        input.finish();
        Ok(())
    });
    // 3. Whichever comes first; most images are decoded before their tasks end.
    let given = Given { allowed: allowed.span, slo: model.slo() };
    tokio::select! {
        outcome = &mut ticket => {
            // An image that is none cancels its task, and that may show first.
            if matches!(outcome, Outcome::Dropped(DropReason::Cancelled, _)) {
                decoded_or_why(decoding.join_next().await)?;
            }
            return ended(outcome, given);
        }
        decoded = decoding.join_next() => decoded_or_why(decoded)?,
    }
    let outcome: Outcome = ticket.await;
    ended(outcome, given)
}

fn decoded_or_why(
    decoded: Option<Result<Result<(), String>, tokio::task::JoinError>>,
) -> Result<(), Problem> {
    match decoded {
        Some(Ok(Ok(()))) => Ok(()),
        Some(Ok(Err(text))) => Err(Problem::invalid(format!("the image is {text}"))),
        Some(Err(_)) | None => Err(Problem::new(Kind::Internal, "the image's decoder has failed")),
    }
}
