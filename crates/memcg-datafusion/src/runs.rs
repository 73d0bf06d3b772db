//! A run of a plan in the queue: all its partitions wait in line, are refused, and run again
//! together.
//!
//! The streams of the partitions may be read by several tasks. Each polls its own input; a step of
//! the run, from one stage to the next, is made by the stream that is polled when it is due, while
//! the others wait for it. No lock is held where an operator, a planner or a waker is called: what
//! is polled or made is taken out of the run meanwhile.
//!
//! An attempt has a number. A stream that comes back from a poll and finds another number has
//! polled the input of an attempt that is over, and drops it.

use std::collections::VecDeque;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::utils::memory::RecordBatchMemoryCounter;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::EmptyRecordBatchStream;
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, Time};
use futures::Stream;
use futures::future::BoxFuture;
use memcg::{Charge, Group, OnFull};

use crate::again::{Again, Plan};
use crate::attempts::Attempt;
use crate::contexts::context_of_pool;
use crate::pool::GroupPool;
use crate::queue::{OfOthers, Place, QueryQueue, Turn};
use crate::readers::{PAUSED, Readers};
use crate::unreserved::Unreserved;

/// So many batches are held back for an error that is under way. Some operators go on after a
/// refusal, so it may not come.
const HELD: usize = 16;

/// What a run has to do with the queue and the group.
pub(crate) struct InQueue {
    queue: QueryQueue,
    /// That of what is above the queue in the query's plan.
    pool: GroupPool,
    own: Group,
    unreserved: Option<Arc<Unreserved>>,
}

impl InQueue {
    pub(crate) fn new(queue: &QueryQueue, pool: &GroupPool) -> InQueue {
        InQueue {
            queue: queue.clone(),
            pool: pool.of(pool.asker().clone()),
            own: pool.group().clone(),
            unreserved: pool.unreserved(),
        }
    }
}

/// What becomes of the rows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// They leave as they come.
    Leave,
    /// They are only counted, as those of EXPLAIN ANALYZE: none leaves before all have come, so the
    /// run may begin anew until then. What leaves has their number, and no columns.
    AreCounted,
}

/// Figures of a run.
pub(crate) struct Figures {
    restarts: Count,
    in_line: Time,
}

impl Figures {
    pub(crate) fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Figures {
        Figures {
            restarts: MetricBuilder::new(metrics).counter("restarts", partition),
            in_line: MetricBuilder::new(metrics).subset_time("time_in_line", partition),
        }
    }
}

/// Batches that wait for an error that may come before them. The query is charged for them.
#[derive(Default)]
struct Held {
    batches: VecDeque<(RecordBatch, Option<Charge>)>,
    counter: RecordBatchMemoryCounter,
    /// Rows that have been counted in their place.
    counted: usize,
    /// Time since which there is no place or no room for more, or nothing more comes.
    full: Option<Instant>,
}

impl Held {
    /// Keeps a batch. If there are many, or no room for this one, it is the last one.
    fn keep(&mut self, own: &Group, batch: RecordBatch) {
        let bytes = self.counter.count_batch(&batch);
        let has_place = self.batches.len() < HELD;
        let charge = has_place
            .then(|| own.charge_with(bytes, OnFull::IfRoom).ok())
            .flatten();
        self.full = charge.is_none().then(Instant::now);
        self.batches.push_back((batch, charge));
    }

    /// Has what was counted leave as a batch.
    fn keep_count(&mut self) -> Result<()> {
        if self.counted > 0 {
            let rows = RecordBatchOptions::new().with_row_count(Some(self.counted));
            let schema = Arc::new(Schema::empty());
            let batch = RecordBatch::try_new_with_options(schema, Vec::new(), &rows)?;
            self.counted = 0;
            self.batches.push_back((batch, None));
        }
        Ok(())
    }
}

/// A run of all partitions of a plan.
pub(crate) struct Run {
    again: Option<Arc<Again>>,
    queue: InQueue,
    figures: Figures,
    readers: Arc<Readers>,
    /// Where the plan is shown whose rows have left, for as long as it may be.
    ran: Weak<OnceLock<Plan>>,
    state: Mutex<State>,
}

struct State {
    stage: Stage,
    rows: Rows,
    /// Number of the attempt.
    number: u64,
    parts: Vec<Part>,
}

/// Stages of a run.
enum Stage {
    /// With the plan of the first attempt; `None`: it is to be planned.
    New(Option<Plan>),
    /// In line, since that time: for the first attempt with its plan, for another one with the
    /// refusal, which is the query's error if the wait is in vain.
    Waits(Place, Option<DataFusionError>, Option<Plan>, Instant),
    Plans(BoxFuture<'static, Result<Plan>>, Attempt),
    /// Without a plan: each partition has begun, and nobody shows it. Without an attempt the query has
    /// left the queue: all that were there have ended.
    Runs(Option<Plan>, Option<Attempt>),
    /// A stream makes a step.
    Steps,
    Failed(Failure),
}

/// What the other partitions are told of the error of one.
#[derive(Clone)]
struct Failure {
    is_refusal: bool,
    text: String,
}

impl Failure {
    fn of(error: &DataFusionError) -> Failure {
        match error.find_root() {
            DataFusionError::ResourcesExhausted(text) => Failure {
                is_refusal: true,
                text: text.clone(),
            },
            _ => Failure {
                is_refusal: false,
                text: error.strip_backtrace(),
            },
        }
    }

    fn into_error(self) -> DataFusionError {
        if self.is_refusal {
            DataFusionError::ResourcesExhausted(self.text)
        } else {
            DataFusionError::Execution(self.text)
        }
    }
}

/// A partition of a run.
#[derive(Default)]
struct Part {
    at: At,
    held: Held,
}

#[derive(Default)]
enum At {
    /// It has no stream yet.
    #[default]
    Untaken,
    /// Its stream has no input of this attempt yet.
    Begins,
    Has(SendableRecordBatchStream),
    /// Its stream polls the input.
    IsPolled,
    /// The input has given all that it has.
    IsEmpty,
    /// The stream has ended, or is gone.
    Gone,
}

impl Part {
    fn is_read(&self) -> bool {
        !matches!(self.at, At::Untaken | At::Gone)
    }

    /// Takes what it has of an attempt that is over.
    fn begins_anew(&mut self) -> Part {
        if !self.is_read() {
            return Part::default();
        }
        mem::replace(self, Part::of(At::Begins))
    }

    fn goes(&mut self) -> Part {
        mem::replace(self, Part::of(At::Gone))
    }

    fn of(at: At) -> Part {
        let held = Held::default();
        Part { at, held }
    }
}

impl State {
    /// True if the inputs of all partitions that are read have given what they have. All that are
    /// counted are read.
    fn are_empty(&self) -> bool {
        let is_untaken = |part: &Part| matches!(part.at, At::Untaken);
        if self.rows == Rows::AreCounted && self.parts.iter().any(is_untaken) {
            return false;
        }
        let mut read = self.parts.iter().filter(|part| part.is_read());
        read.all(|part| matches!(part.at, At::IsEmpty))
    }

    /// Takes the attempt out of the queue where each input has given what it has.
    fn ends_well(&mut self) -> Option<(Attempt, Option<Plan>)> {
        if !self.are_empty() {
            return None;
        }
        let Stage::Runs(plan, attempt) = &mut self.stage else {
            return None;
        };
        let attempt = attempt.take()?;
        attempt.place.ended_well();
        Some((attempt, plan.clone()))
    }

    /// True if each partition has executed the plan of the attempt, or is gone.
    fn have_begun(&self) -> bool {
        let is_to_begin = |part: &Part| matches!(part.at, At::Untaken | At::Begins);
        !self.parts.iter().any(is_to_begin)
    }

    /// Takes what the queue has of a run that no stream reads.
    fn leave_queue(&mut self) -> Option<Stage> {
        let (stays, goes) = match mem::replace(&mut self.stage, Stage::Steps) {
            Stage::Runs(plan, attempt) => {
                (Stage::Runs(plan.clone(), None), Stage::Runs(plan, attempt))
            }
            Stage::Waits(place, refusal, plan, since) => {
                (Stage::New(plan), Stage::Waits(place, refusal, None, since))
            }
            plans @ Stage::Plans(..) => (Stage::New(None), plans),
            stage => {
                self.stage = stage;
                return None;
            }
        };
        self.stage = stays;
        Some(goes)
    }

    /// The plan and the attempt with this number. `None`: it is over.
    fn attempt(&mut self, number: u64) -> Option<(&Option<Plan>, &mut Option<Attempt>)> {
        match &mut self.stage {
            Stage::Runs(plan, attempt) if self.number == number => Some((plan, attempt)),
            _ => None,
        }
    }
}

/// A step of a run from one stage to the next, made by the stream of the partition `at`. The other
/// streams wait until it ends. A step that does not, because what it called has panicked, fails the
/// run.
struct Step<'a> {
    run: &'a Run,
    at: usize,
    has_ended: bool,
}

impl Step<'_> {
    fn ends(mut self, stage: Stage) {
        self.enters(stage);
        self.run.readers.wake_others(self.at);
    }

    /// Ends for now. Whoever goes on with it is woken by what it waits for.
    fn pauses(mut self, stage: Stage) {
        self.enters(stage);
    }

    fn fails(self, error: DataFusionError) -> DataFusionError {
        let failure = Failure::of(&error);
        let gone = self.run.lock().parts[self.at].goes();
        drop(gone);
        self.ends(Stage::Failed(failure));
        error
    }

    fn enters(&mut self, stage: Stage) {
        self.has_ended = true;
        let before = mem::replace(&mut self.run.lock().stage, stage);
        // Without the lock: the place of an attempt wakes others as it goes.
        drop(before);
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let text = "the query has panicked in another partition".to_string();
            self.enters(Stage::Failed(Failure {
                is_refusal: false,
                text,
            }));
            self.run.readers.wake_others(self.at);
        }
    }
}

/// What a stream does next.
enum Next<'a> {
    Waits,
    /// The attempt has become the last one: the others may send, too.
    Looks,
    Gives(RecordBatch, Option<Charge>),
    Ends,
    Fails(DataFusionError),
    /// The query goes into the line.
    Arrives(Step<'a>, Option<Plan>),
    /// It is the query's turn; true: again.
    Starts(Step<'a>, Place, bool, Option<Plan>),
    /// The wait was in vain.
    GivesUp(Step<'a>, Place, DataFusionError),
    Plans(Step<'a>, BoxFuture<'static, Result<Plan>>, Attempt),
    /// It polls its input, which is one of the attempt with this number.
    Polls(u64, Input, Held),
    IsOver(Over<'a>, Why),
}

enum Input {
    /// The partition of the plan is to be executed, with the pool of its attempt. `None`: the query
    /// has left the queue.
    Of(Plan, Option<Arc<dyn MemoryPool>>),
    Has(SendableRecordBatchStream),
}

/// An attempt that is over, and what its partitions had. Its fields drop in their order: streams go
/// before their attempt.
struct Over<'a> {
    parts: Vec<Part>,
    plan: Option<Plan>,
    attempt: Option<Attempt>,
    step: Step<'a>,
}

/// Why an attempt is over.
enum Why {
    /// For an error, which is a refusal at the level, or is looked up.
    Error(DataFusionError, Option<Group>),
    /// Another query waits for its memory.
    GivesWay(OfOthers),
}

impl Run {
    /// A run that begins with the plan `first`, or with a new one.
    pub(crate) fn new(
        first: Option<Plan>,
        partitions: usize,
        again: Option<Arc<Again>>,
        rows: Rows,
        queue: InQueue,
        figures: Figures,
        ran: &Arc<OnceLock<Plan>>,
    ) -> Run {
        Run {
            again,
            queue,
            figures,
            readers: Arc::new(Readers::new(partitions)),
            ran: Arc::downgrade(ran),
            state: Mutex::new(State {
                stage: Stage::New(first),
                rows,
                number: 0,
                parts: (0..partitions).map(|_| Part::default()).collect(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a partition. False: a stream has taken it already.
    pub(crate) fn joins(&self, at: usize) -> bool {
        let part = &mut self.lock().parts[at];
        let is_free = matches!(part.at, At::Untaken);
        if is_free {
            part.at = At::Begins;
        }
        is_free
    }

    /// True if each partition has been taken.
    pub(crate) fn is_complete(&self) -> bool {
        let is_taken = |part: &Part| !matches!(part.at, At::Untaken);
        self.lock().parts.iter().all(is_taken)
    }

    fn step(&self, at: usize) -> Step<'_> {
        Step {
            run: self,
            at,
            has_ended: false,
        }
    }

    /// What the stream of a partition does next.
    fn next(&self, at: usize) -> Next<'_> {
        let state = &mut *self.lock();
        if !state.parts[at].is_read() {
            return Next::Ends;
        }
        match mem::replace(&mut state.stage, Stage::Steps) {
            Stage::Steps => Next::Waits,
            Stage::New(plan) => Next::Arrives(self.step(at), plan),
            Stage::Waits(place, refusal, plan, since) => match (place.turn(), refusal) {
                (Turn::Waits, refusal) => {
                    state.stage = Stage::Waits(place, refusal, plan, since);
                    Next::Waits
                }
                (Turn::Over, Some(refusal)) => {
                    self.figures.in_line.add_elapsed(since);
                    Next::GivesUp(self.step(at), place, refusal)
                }
                (_, refusal) => {
                    self.figures.in_line.add_elapsed(since);
                    Next::Starts(self.step(at), place, refusal.is_some(), plan)
                }
            },
            Stage::Plans(plan, attempt) => Next::Plans(self.step(at), plan, attempt),
            Stage::Failed(failure) => {
                let error = failure.clone().into_error();
                state.stage = Stage::Failed(failure);
                state.parts[at].at = At::Gone;
                Next::Fails(error)
            }
            Stage::Runs(plan, attempt) => self.next_of_attempt(state, at, plan, attempt),
        }
    }

    /// The same while an attempt runs, which has been taken out of the state.
    fn next_of_attempt<'a>(
        &'a self,
        state: &mut State,
        at: usize,
        mut plan: Option<Plan>,
        mut attempt: Option<Attempt>,
    ) -> Next<'a> {
        let unreserved = self.queue.unreserved.as_ref();
        if let Some((error, level)) = unreserved.and_then(|one| one.error()) {
            let over = self.over(state, at, plan, attempt);
            return Next::IsOver(over, Why::Error(error, Some(level)));
        }
        let part = &mut state.parts[at];
        let is_empty = matches!(part.at, At::IsEmpty);
        let may_run_again = attempt.as_ref().is_some_and(|one| !one.cannot_run_again);
        if is_empty && may_run_again && state.rows == Rows::AreCounted {
            // The last partition to come here ends the attempt, and wakes the others.
            state.stage = Stage::Runs(plan, attempt);
            return Next::Waits;
        }
        if let (Some(full), Some(own), true) = (part.held.full, &mut attempt, may_run_again) {
            // The first rows stay while another query sends some: it may yet need this one's memory.
            // The end of a partition leaves as a row does: another attempt may have rows there, and
            // one that follows a refusal that is under way. That error comes to whoever reads another
            // partition, and to nobody where the partitions are read one after the other.
            let may_come = full.elapsed() < PAUSED || self.readers.others_ask(at);
            let sends = if is_empty && may_come {
                own.may_send()
            } else {
                own.sends(false)
            };
            if !sends && let Some(of_others) = own.place.gives_way(&self.queue.own) {
                let over = self.over(state, at, plan, attempt);
                return Next::IsOver(over, Why::GivesWay(of_others));
            }
            let holds = !sends && own.place.holds(full, &self.readers);
            if !sends && !holds {
                own.sends(true);
            }
            if !holds {
                self.shows(plan.as_ref());
            }
            state.stage = Stage::Runs(plan, attempt);
            return if holds { Next::Waits } else { Next::Looks };
        }
        let first = if may_run_again {
            None
        } else {
            part.held.batches.pop_front()
        };
        let next = match first {
            Some((batch, charge)) => Next::Gives(batch, charge),
            None => match mem::replace(&mut part.at, At::IsPolled) {
                At::IsEmpty => {
                    part.at = At::Gone;
                    Next::Ends
                }
                At::Begins => {
                    let held = mem::take(&mut part.held);
                    // The table of a join goes with the streams that read it, and with the plan.
                    let stays = !state.have_begun() || self.ran.strong_count() > 0;
                    let executed = if stays { plan.clone() } else { plan.take() };
                    let pool = attempt.as_ref().map(Attempt::pool);
                    match executed {
                        Some(plan) => Next::Polls(state.number, Input::Of(plan, pool), held),
                        None => Next::Fails(internal_datafusion_err!("a run without a plan")),
                    }
                }
                At::Has(input) => {
                    let held = mem::take(&mut part.held);
                    Next::Polls(state.number, Input::Has(input), held)
                }
                At::IsPolled | At::Untaken | At::Gone => {
                    part.at = At::Gone;
                    let text = "a poll of this partition has panicked".to_string();
                    Next::Fails(DataFusionError::Execution(text))
                }
            },
        };
        state.stage = Stage::Runs(plan, attempt);
        next
    }

    /// Ends an attempt: all its partitions begin anew.
    fn over<'a>(
        &'a self,
        state: &mut State,
        at: usize,
        plan: Option<Plan>,
        attempt: Option<Attempt>,
    ) -> Over<'a> {
        state.stage = Stage::Steps;
        state.number += 1;
        if let Some(attempt) = &attempt {
            attempt.known().is_over();
        }
        let parts = state.parts.iter_mut().map(Part::begins_anew).collect();
        Over {
            parts,
            plan,
            attempt,
            step: self.step(at),
        }
    }

    /// Gives a partition back what its stream has after a poll. False where its attempt is over: it
    /// goes then, with its stream.
    fn returns(&self, at: usize, number: u64, part: Part) -> bool {
        let mut state = self.lock();
        if state.attempt(number).is_none() {
            // A stream is foreign code, whose end must not run below the lock.
            drop(state);
            drop(part);
            return false;
        }
        state.parts[at] = part;
        let ended = state.ends_well();
        drop(state);
        self.ended_well(at, ended);
        true
    }

    /// The rows of the plan have left, or are about to.
    fn shows(&self, plan: Option<&Plan>) {
        if let (Some(plan), Some(ran)) = (plan, self.ran.upgrade()) {
            let _ = ran.set(Arc::clone(plan));
        }
    }

    fn ended_well(&self, at: usize, ended: Option<(Attempt, Option<Plan>)>) {
        if let Some((attempt, plan)) = ended {
            self.shows(plan.as_ref());
            drop(attempt);
            self.readers.wake_others(at);
        }
    }

    /// Counts the rows of a batch that is not to leave, and says so. `None`: its attempt is over.
    fn counts(&self, number: u64, batch: &RecordBatch, held: &mut Held) -> Option<bool> {
        let state = &mut *self.lock();
        let rows = state.rows;
        let (_, attempt) = state.attempt(number)?;
        let may_run_again = attempt.as_ref().is_some_and(|one| !one.cannot_run_again);
        let counts = rows == Rows::AreCounted && may_run_again;
        if counts {
            held.counted += batch.num_rows();
        }
        Some(counts)
    }

    /// True if a batch may leave at once. `None`: its attempt is over.
    fn may_send(&self, at: usize, number: u64, batch: &RecordBatch, held: &Held) -> Option<bool> {
        let is_first = held.batches.is_empty();
        let (sends, begins) = {
            let state = &mut *self.lock();
            match state.attempt(number)? {
                (_, None) => (is_first, false),
                (plan, Some(attempt)) => {
                    let was_last = attempt.cannot_run_again;
                    let sends = is_first && (batch.num_rows() == 0 || attempt.may_send());
                    let begins = attempt.cannot_run_again && !was_last;
                    if was_last || begins {
                        self.shows(plan.as_ref());
                    }
                    (sends, begins)
                }
            }
        };
        if begins {
            self.readers.wake_others(at);
        }
        Some(sends)
    }

    /// Ends the attempt with this number for an error of a partition. `None`: it is over already.
    fn ends(&self, at: usize, number: u64) -> Option<Over<'_>> {
        let state = &mut *self.lock();
        state.attempt(number)?;
        match mem::replace(&mut state.stage, Stage::Steps) {
            Stage::Runs(plan, attempt) => Some(self.over(state, at, plan, attempt)),
            stage => {
                state.stage = stage;
                None
            }
        }
    }

    /// Puts the query of an attempt that is over back into the line, or returns its error.
    fn lines_up(&self, attempt: Option<Attempt>, why: Why) -> Result<Stage> {
        let own = &self.queue.own;
        let (error, of_others) = match why {
            Why::GivesWay(of_others) => {
                let text = format!(
                    "{}: another query that cannot run again waits for its memory",
                    own.path()
                );
                (DataFusionError::ResourcesExhausted(text), Some(of_others))
            }
            Why::Error(error, level) => {
                let of_others = attempt.as_ref().and_then(|attempt| {
                    let level = level.or_else(|| attempt.level_of(&error))?;
                    attempt.place.of_others(&level, own)
                });
                (error, of_others)
            }
        };
        let (Some(attempt), Some(of_others)) = (attempt, of_others) else {
            return Err(error);
        };
        if attempt.cannot_run_again || !attempt.place.may_run_again(&of_others) {
            self.queue.queue.has_refused(attempt.cannot_run_again);
            return Err(error);
        }
        let place = attempt.place.line_up(of_others);
        Ok(Stage::Waits(place, Some(error), None, Instant::now()))
    }

    /// Goes on after an attempt that is over, for which the run's lock is not held.
    fn goes_on(&self, over: Over<'_>, why: Why) -> Result<()> {
        let Over {
            parts,
            plan,
            attempt,
            step,
        } = over;
        drop(parts);
        drop(plan);
        match self.lines_up(attempt, why) {
            Ok(stage) => {
                step.ends(stage);
                Ok(())
            }
            Err(error) => Err(step.fails(error)),
        }
    }

    /// The first stage of an attempt whose turn it is: with a plan it runs, else it is planned.
    fn starts(&self, place: Place, is_again: bool, plan: Option<Plan>) -> Result<Stage> {
        let InQueue { queue, pool, .. } = &self.queue;
        let attempt = Attempt::new(queue, pool, place, self.again.is_none());
        match (plan, &self.again) {
            (Some(plan), _) => Ok(Stage::Runs(Some(plan), Some(attempt))),
            (None, Some(again)) => {
                if is_again {
                    if let Some(unreserved) = &self.queue.unreserved {
                        unreserved.begins_anew();
                    }
                    self.figures.restarts.add(1);
                    attempt.place.restarts();
                }
                Ok(Stage::Plans(Box::pin(Arc::clone(again).plan()), attempt))
            }
            (None, None) => internal_err!("a plan that cannot run again"),
        }
    }

    /// A plan that was made again, with no more partitions than the first one: the files of a table
    /// may have changed meanwhile.
    fn of_partitions(&self, plan: Plan) -> Plan {
        if plan.output_partitioning().partition_count() > self.readers.count() {
            Arc::new(CoalescePartitionsExec::new(plan))
        } else {
            plan
        }
    }

    /// The stream of a partition is gone. With the last one, the query leaves the queue: streams of
    /// partitions that nobody has taken yet go on with its plan, without waiting.
    fn leaves(&self, at: usize) {
        let (part, ended, left) = {
            let state = &mut *self.lock();
            let part = state.parts[at].goes();
            let is_read = state.parts.iter().any(Part::is_read);
            let ended = is_read.then(|| state.ends_well()).flatten();
            let left = (!is_read).then(|| state.leave_queue());
            (part, ended, left)
        };
        drop(part);
        self.ended_well(at, ended);
        drop(left);
        self.readers.leaves(at);
        self.readers.wake_others(at);
    }
}

/// The rows of a partition of a plan in the queue.
pub(crate) struct QueuedStream {
    schema: SchemaRef,
    run: Arc<Run>,
    /// Number of the partition.
    at: usize,
    context: Arc<TaskContext>,
    /// It wakes the reader.
    waker: Waker,
}

impl QueuedStream {
    pub(crate) fn new(
        schema: SchemaRef,
        run: Arc<Run>,
        at: usize,
        context: Arc<TaskContext>,
    ) -> QueuedStream {
        QueuedStream {
            schema,
            waker: run.readers.waker_of(at),
            run,
            at,
            context,
        }
    }

    fn execute(
        &self,
        plan: &Plan,
        pool: Option<Arc<dyn MemoryPool>>,
    ) -> Result<SendableRecordBatchStream> {
        if self.at < plan.output_partitioning().partition_count() {
            let context = match pool {
                Some(pool) => context_of_pool(&self.context, pool),
                None => Arc::clone(&self.context),
            };
            plan.execute(self.at, context)
        } else {
            // One that was made again has fewer partitions.
            Ok(Box::pin(EmptyRecordBatchStream::new(self.schema())))
        }
    }

    /// Polls the input of the attempt with this number, and gives back what it has been lent.
    fn poll_input(&self, number: u64, input: Input, mut held: Held) -> Polled {
        let run = &*self.run;
        let input = match input {
            Input::Has(input) => Ok(input),
            Input::Of(plan, pool) => self.execute(&plan, pool),
        };
        let (at, polled) = match input {
            Err(error) => (At::Begins, Poll::Ready(Some(Err(error)))),
            Ok(mut input) => match input
                .as_mut()
                .poll_next(&mut Context::from_waker(&self.waker))
            {
                Poll::Ready(None) => (At::IsEmpty, Poll::Ready(None)),
                polled => (At::Has(input), polled),
            },
        };
        let returns = |at, held| run.returns(self.at, number, Part { at, held });
        match polled {
            Poll::Pending => {
                if returns(at, held) {
                    Polled::Pending
                } else {
                    Polled::Looks
                }
            }
            Poll::Ready(Some(Ok(batch))) => {
                match run.counts(number, &batch, &mut held) {
                    None => return Polled::Looks,
                    Some(true) => {
                        returns(at, held);
                        return Polled::Looks;
                    }
                    Some(false) => {}
                }
                let Some(sends) = run.may_send(self.at, number, &batch, &held) else {
                    return Polled::Looks;
                };
                if !sends {
                    held.keep(&run.queue.own, batch);
                    returns(at, held);
                    return Polled::Looks;
                }
                if returns(at, held) {
                    Polled::Gives(batch)
                } else {
                    Polled::Looks
                }
            }
            Poll::Ready(Some(Err(error))) => {
                drop((at, held));
                match run.ends(self.at, number) {
                    Some(over) => match run.goes_on(over, Why::Error(error, None)) {
                        Ok(()) => Polled::Looks,
                        Err(error) => Polled::Fails(error),
                    },
                    None => Polled::Looks,
                }
            }
            Poll::Ready(None) => {
                if let Err(error) = held.keep_count() {
                    return Polled::Fails(error);
                }
                // What is held leaves once the query cannot run again.
                held.full.get_or_insert_with(Instant::now);
                returns(at, held);
                Polled::Looks
            }
        }
    }

    fn poll_batch(&mut self) -> Poll<Option<Result<RecordBatch>>> {
        let run = &*self.run;
        loop {
            match run.next(self.at) {
                Next::Waits => return Poll::Pending,
                Next::Looks => run.readers.wake_others(self.at),
                Next::Gives(batch, charge) => {
                    drop(charge);
                    return Poll::Ready(Some(Ok(batch)));
                }
                Next::Ends => return Poll::Ready(None),
                Next::Fails(error) => return Poll::Ready(Some(Err(error))),
                Next::Arrives(step, plan) => {
                    let InQueue { queue, own, .. } = &run.queue;
                    let place = queue.arrive(own, &run.readers, run.again.is_none());
                    step.ends(Stage::Waits(place, None, plan, Instant::now()));
                }
                Next::GivesUp(step, place, refusal) => {
                    run.queue.queue.has_refused(false);
                    drop(place);
                    return Poll::Ready(Some(Err(step.fails(refusal))));
                }
                Next::Starts(step, place, is_again, plan) => {
                    match run.starts(place, is_again, plan) {
                        Ok(stage) => step.ends(stage),
                        Err(error) => return Poll::Ready(Some(Err(step.fails(error)))),
                    }
                }
                Next::Plans(step, mut plan, attempt) => {
                    // Whichever stream is there goes on with it.
                    let waker = Waker::from(Arc::clone(&run.readers));
                    match plan.as_mut().poll(&mut Context::from_waker(&waker)) {
                        Poll::Pending => {
                            step.pauses(Stage::Plans(plan, attempt));
                            return Poll::Pending;
                        }
                        Poll::Ready(Ok(plan)) => {
                            step.ends(Stage::Runs(Some(run.of_partitions(plan)), Some(attempt)));
                        }
                        Poll::Ready(Err(error)) => {
                            drop(attempt);
                            return Poll::Ready(Some(Err(step.fails(error))));
                        }
                    }
                }
                Next::Polls(number, input, held) => match self.poll_input(number, input, held) {
                    Polled::Pending => return Poll::Pending,
                    Polled::Looks => {}
                    Polled::Gives(batch) => return Poll::Ready(Some(Ok(batch))),
                    Polled::Fails(error) => return Poll::Ready(Some(Err(error))),
                },
                Next::IsOver(over, why) => {
                    if let Err(error) = run.goes_on(over, why) {
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
        }
    }
}

/// What has come of a poll of an input.
enum Polled {
    Pending,
    Looks,
    Gives(RecordBatch),
    Fails(DataFusionError),
}

impl Stream for QueuedStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Registered before the look at the turn, so that no turn is missed.
        self.run.readers.asks(self.at, context.waker());
        let batch = self.poll_batch();
        match batch {
            Poll::Pending => self.run.readers.waits(self.at),
            Poll::Ready(Some(Ok(_))) => self.run.readers.takes(self.at),
            Poll::Ready(_) => self.run.leaves(self.at),
        }
        batch
    }
}

impl Drop for QueuedStream {
    fn drop(&mut self) {
        self.run.leaves(self.at);
    }
}

impl RecordBatchStream for QueuedStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
