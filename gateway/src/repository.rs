//! Models that clients load and unload: those of the cluster file, by way of the scheduler's catalogue.
//!
//! An operator's connection blocks, so one thread makes one change after the other. Handlers wait for it.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use baton_client::{ModelHandle, Operator, OperatorError};
use tokio::sync::{mpsc, oneshot};
use tokio::time;

use crate::access::{Asker, may_use, operate};
use crate::gateway::App;
use crate::protocol::describe::Indexed;
use crate::protocol::problem::{Kind, Problem};

/// Changes that wait for the one before.
const WAITING: usize = 16;
/// For the gateway's own client to hear of a change.
const HEARD: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Makes an operator's connection.
pub type Connect = dyn Fn() -> Result<Operator, OperatorError> + Send + Sync;

/// What clients may load.
#[derive(Clone)]
pub struct Repository {
    /// The `[[model]]` table of each model by its name, in a file of its own, with absolute paths.
    pub tables: BTreeMap<String, String>,
    /// To the scheduler that leads.
    pub connect: Arc<Connect>,
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.tables.keys()).finish()
    }
}

/// A change to make.
struct Change {
    name: String,
    /// The table to add; `None`: the model goes.
    table: Option<String>,
    done: oneshot::Sender<Result<(), OperatorError>>,
}

impl Change {
    /// A model that is there already, or gone, stays so: clients repeat themselves.
    fn make(name: &str, table: Option<&str>, connect: &Connect) -> Result<(), OperatorError> {
        let mut operator = connect()?;
        let is_there = operator.models().iter().any(|model| model.name == name);
        let words = match table {
            Some(table) if !is_there => operator.add(table, |_| ())?,
            None if is_there => operator.remove(name, |_| ())?,
            _ => return Ok(()),
        };
        tracing::info!(model = name, "{words}");
        Ok(())
    }
}

/// The repository, and the thread that changes the catalogue. It ends with the last of these, or with the process.
pub(crate) struct Operating {
    tables: BTreeMap<String, String>,
    changes: mpsc::Sender<Change>,
}

impl Operating {
    pub(crate) fn start(repository: Repository) -> io::Result<Self> {
        let (changes, mut asked) = mpsc::channel::<Change>(WAITING);
        let Repository { tables, connect } = repository;
        thread::Builder::new().name("baton-gateway-operator".into()).spawn(move || {
            while let Some(Change { name, table, done }) = asked.blocking_recv() {
                // The client may be gone; the change is made all the same.
                let _ = done.send(Change::make(&name, table.as_deref(), &*connect));
            }
        })?;
        Ok(Self { tables, changes })
    }

    async fn change(&self, name: &str, table: Option<String>) -> Result<(), Problem> {
        let (done, made) = oneshot::channel();
        let change = Change { name: name.to_owned(), table, done };
        self.changes.try_send(change).map_err(|_| {
            Problem::shed("as many models as may wait are being loaded or unloaded", HEARD)
        })?;
        match made.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(OperatorError::Refused(words))) => Err(Problem::invalid(words)),
            Ok(Err(error)) => Err(Problem::unavailable(error.to_string())),
            Err(_) => Err(Problem::new(Kind::Internal, "the thread that loads models has died")),
        }
    }
}

/// Makes a model usable.
pub(crate) async fn load(app: &App, asker: &Asker, name: &str) -> Result<(), Problem> {
    let (operating, table) = permitted(app, asker, name)?;
    operating.change(name, Some(table)).await?;
    heard(|| app.client.model(name).is_ok()).await
}

/// Takes a model away, once its last task has ended.
pub(crate) async fn unload(app: &App, asker: &Asker, name: &str) -> Result<(), Problem> {
    let (operating, _) = permitted(app, asker, name)?;
    operating.change(name, None).await?;
    heard(|| app.client.model(name).is_err()).await
}

/// The scheduler has made the change; this process hears of it a moment later.
async fn heard(is_so: impl Fn() -> bool) -> Result<(), Problem> {
    let heard = async {
        while !is_so() {
            time::sleep(LOOK_EVERY).await;
        }
    };
    let late =
        |_| Problem::unavailable("the change is made, and this gateway has not heard of it yet");
    time::timeout(HEARD, heard).await.map_err(late)
}

/// A model's table, if the asker may load and unload it.
fn permitted<'a>(
    app: &'a App,
    asker: &Asker,
    name: &str,
) -> Result<(&'a Operating, String), Problem> {
    operate(asker)?;
    let operating = app.operating.as_ref().ok_or_else(|| {
        let text = "this gateway does not load or unload models: start it with --model-control, or use `baton model add` and `baton model remove`";
        Problem::new(Kind::NotDone, text)
    })?;
    let table = table_of(&operating.tables, asker, name)?;
    Ok((operating, table.to_owned()))
}

/// The table of a model that the asker may use. An asker hears the names of no others.
fn table_of<'a>(
    tables: &'a BTreeMap<String, String>,
    asker: &Asker,
    name: &str,
) -> Result<&'a str, Problem> {
    if let Some(table) = tables.get(name).filter(|_| may_use(asker, name)) {
        return Ok(table);
    }
    let known = tables.keys().filter(|name| may_use(asker, name));
    let known: Vec<&str> = known.map(String::as_str).collect();
    let known = known.join(", ");
    let text = format!("the gateway's cluster file has no model {name:?}; it has: {known}");
    Err(Problem::new(Kind::NotFound, text))
}

/// Triton's clients can send a configuration and files with a load.
pub(crate) fn no_parameter(name: &str) -> Problem {
    let name: String = name.chars().take(40).collect();
    let text = format!(
        "a load takes no parameter {name:?} here: the model's table in the cluster file says everything"
    );
    Problem::new(Kind::NotDone, text)
}

/// The models that this asker may use, and those of the repository that could be loaded.
pub(crate) fn index(app: &App, asker: &Asker, only_ready: bool) -> Vec<Indexed> {
    let ready = |model: ModelHandle| Indexed { name: model.name().to_owned(), is_ready: true };
    let mut models: Vec<Indexed> = app.models(asker).into_iter().map(ready).collect();
    let tables = app.operating.iter().flat_map(|operating| operating.tables.keys());
    let is_known = |name: &str| models.iter().any(|model| model.name == name);
    let others: Vec<Indexed> = tables
        .filter(|name| !only_ready && may_use(asker, name) && !is_known(name))
        .map(|name| Indexed { name: name.clone(), is_ready: false })
        .collect();
    models.extend(others);
    models
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::runtime;

    use super::*;
    use crate::access::asker_of;

    #[test]
    fn who_may_not_use_a_model_hears_nothing_of_it() {
        let tables = ["a", "b", "c"].map(|name| (name.to_owned(), format!("table of {name}")));
        let tables = BTreeMap::from(tables);
        let told = |asker: &Asker, name| table_of(&tables, asker, name).map_err(|no| no.text);
        assert_eq!(told(&None, "b"), Ok("table of b"));
        assert!(told(&None, "d").unwrap_err().ends_with("no model \"d\"; it has: a, b, c"));
        let asker = asker_of(&["a", "c", "d"]);
        assert_eq!(told(&asker, "c"), Ok("table of c"));
        for name in ["b", "d"] {
            let text = told(&asker, name).unwrap_err();
            assert!(text.ends_with(&format!("no model {name:?}; it has: a, c")), "{text}");
        }
    }

    #[test]
    fn who_asks_for_a_change_is_answered_once_the_gateway_has_heard_of_it() {
        let looks = Cell::new(0);
        let is_so = || looks.replace(looks.get() + 1) == 3;
        let runtime = runtime::Builder::new_current_thread().enable_time().build().unwrap();
        assert_eq!(runtime.block_on(heard(is_so)), Ok(()));
        assert_eq!(looks.get(), 4);
    }
}
