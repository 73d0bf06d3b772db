//! The script of a run: plain data, drawn from a seed.
//!
//! Each operation names its subjects by small numbers, which the run takes modulo what there is.
//! So every subset of a script is a script, and a failing one shrinks by leaving operations out.
//! What the operations print with `{:?}` is the code that makes them.

#[cfg(feature = "kmem")]
mod adapters;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, RngExt, SeedableRng};

#[cfg(feature = "kmem")]
pub use adapters::Adapter;

/// The runtime of a run, and what the operations may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Threads that take turns.
    pub threads: u8,
    /// Bytes that a thread charges ahead.
    pub batch: u64,
    /// The batch shrinks near a limit.
    pub adaptive: bool,
    /// The runtime keeps a second count.
    pub audit: bool,
    /// A fence in the place of the barrier pair.
    pub fence: bool,
    /// What all stocks may hold together.
    pub budget: Option<u64>,
    /// The root's max.
    pub max: u64,
    /// Most groups at a time.
    pub groups_max: u32,
    /// NUMA nodes.
    pub nodes: usize,
    /// Objects of the pools lie without a byte between them.
    pub packed: bool,
    /// `low` and `min` of a parent protect its children.
    pub recursive: bool,
    /// Incidents that are kept.
    pub incidents: usize,
    /// The runtime counts for how long charges stand still.
    pub stalls: bool,
    /// For how long reclaim may take, in milliseconds. What is promised is waited for so long.
    pub reclaim_time: u64,
    /// Bytes of statistics that a thread keeps back.
    pub stat_batch: Option<u64>,
    /// The longest delay above high, in milliseconds.
    pub delay: u64,
    /// Pages lie where the run says, and groups are as large as adapters need it.
    pub adapters: bool,
    /// The seed of the schedule, where shuttle's threads run the script.
    pub schedule: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            threads: 3,
            batch: 1_024,
            adaptive: false,
            audit: true,
            fence: false,
            budget: None,
            max: u64::MAX,
            groups_max: 64,
            nodes: 1,
            packed: false,
            recursive: false,
            incidents: 0,
            stalls: false,
            reclaim_time: RECLAIM_TIME,
            stat_batch: None,
            delay: 0,
            adapters: false,
            schedule: 0,
        }
    }
}

/// Long enough for any reclaimer of a run; each operation asks them as often as it may.
pub(crate) const RECLAIM_TIME: u64 = 600_000;

/// Nobody keeps a promise while another one waits for it: that takes its time each time.
const PROMISE_TIME: u64 = 20;

/// An operation, and the thread that does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op(pub u8, pub What);

/// An amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many.
    Bytes(u64),
    /// As much as fits, and so much less.
    Less(u64),
    /// As much as fits, and so much more.
    More(u64),
    /// So many parts of 16 of the group's max.
    Part(u8),
    /// What is live, and so much more: for a limit.
    Above(u64),
    /// As much as fits at all levels but the fullest, and so much less.
    Beyond(u64),
}

/// How a charge is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `charge`, `grow`, `resize`.
    Plain,
    /// The forms with `try_`.
    Try,
    /// `OnFull::Reclaim`.
    Reclaims,
    /// `OnFull::Start`.
    Start,
    /// `OnFull::Now`.
    Now,
    /// `OnFull::IfRoom`.
    IfRoom,
    /// `OnFull::Wait` with no time.
    WaitNot,
    /// `force_charge`, `force_grow`, `force_resize`.
    Force,
}

/// The nature of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// It gives what it is asked for.
    Honest,
    /// It gives half, and says that it gave all.
    Half,
    /// It gives nothing.
    Stubborn,
    /// It gives all that it has.
    Greedy,
    /// It gives what it is asked for, and charges half of that again.
    Refills,
    /// It says that it gave everything, and gave nothing.
    Boasts,
    /// It panics at once.
    PanicsAtOnce,
    /// It gives something, then panics.
    PanicsLate,
    /// It calls the library meanwhile.
    Busy,
    /// It ends its own registration.
    Quits,
    /// It promises, and keeps it at once.
    Promises,
    /// It promises for the first time, and forgets that; then it gives what it is asked for.
    Forgets,
    /// It promises, and keeps that later, or never.
    Keeps,
    /// It gives what it is asked for, and says that it gave nothing.
    Modest,
    /// It gives what it is asked for, and estimates that it has nothing.
    EstimatesNothing,
    /// It gives what it is asked for, and estimates that it has no end.
    EstimatesAll,
    /// It gives what it is asked for, and panics when its estimate is asked for.
    PanicsInEstimate,
}

/// What a listener, a hook or a waker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It counts.
    Nothing,
    /// It panics.
    Panics,
    /// It charges, and keeps that.
    Charges(u64),
    /// It creates a group and takes it offline.
    Creates,
    /// It reads everything.
    Reads,
}

/// A limit of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `set_max`.
    Max,
    /// `set_max_now`.
    MaxNow,
    /// The further counter's max.
    FurtherMax,
    /// The max of what lies on the first node.
    TierMax,
    /// `high`.
    High,
    /// `soft`.
    Soft,
    /// `low`.
    Low,
    /// `min`.
    Min,
    /// `reclaim_above`.
    Mark,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Creates a group below that one, of that name, with that max.
    Create(u8, u8, Option<u64>),
    /// The same with more limits than a max, by their number.
    CreateWith(u8, u8, u8),
    /// The same while the allocator refuses after so many allocations.
    CreateDenied(u8, u8, u8),
    /// The same with a soft limit of so many percent of the nearest max above.
    CreateWithPercent(u8, u8, u8),
    /// Takes a handle more.
    CloneHandle(u8),
    /// Drops a handle.
    DropHandle(u8),
    /// Takes a group offline if it has no children.
    Offline(u8),
    /// Takes a group and all below it offline.
    OfflineTree(u8),
    /// Finds a group by the id that it has or had.
    Find(u8),

    /// A tree is applied below that group, by the number of its form, with that max; true: what other
    /// trees have made goes.
    Apply(u8, u8, Size, bool),

    /// Sets a limit.
    Set(u8, Kind, Size),
    /// Takes a limit away.
    Unset(u8, Kind),
    /// Sets a limit to so many percent of the nearest max above, if there is one.
    SetPart(u8, Kind, u8),
    /// The max moves by itself, as that of a host does; true: what is above it is reclaimed.
    MoveMax(u8, Size, bool),
    /// Charges that wait for more than such a max end once it has stood; true: it moves no more.
    EndVainWaits(u8, bool),
    /// Sets thresholds of pressure.
    Thresholds(u8, u8, u8),
    /// Sets the importance.
    Importance(u8, u8),
    /// Sets the share of what the parent may hold; 0 takes it away.
    Share(u8, u32),
    /// Has limits count only, or act again.
    Observe(u8, bool),
    /// Sets the batch of a group.
    Batch(u8, u64),

    /// Charges.
    Charge(u8, Verb, Size),
    /// Charges memory and the further counter as one.
    ChargeSet(u8, bool, Size, Size),
    /// A charge grows.
    Grow(u8, Verb, Size),
    /// A charge shrinks.
    Shrink(u8, u64),
    /// A charge gets that size.
    Resize(u8, Verb, Size),
    /// A part of a charge becomes another.
    Split(u8, u64),
    /// All of a charge becomes another.
    Take(u8),
    /// The second becomes part of the first.
    Merge(u8, u8),
    /// A charge moves to that group.
    Transfer(u8, u8),
    /// A charge ends.
    Drop(u8),
    /// All charges of a group end.
    DropAll(u8),
    /// Charges without a guard.
    RawCharge(u8, Verb, Size),
    /// Gives bytes without a guard back.
    RawUncharge(u8, u64),
    /// A charge goes through a word of a foreign program.
    IntoRaw(u8),
    /// What is left of it becomes a charge again.
    FromRaw(u8),

    /// Makes a vector that is charged.
    VecNew(u8),
    /// Pushes so many items; 0: one more than there is room for.
    VecPush(u8, Verb, u16),
    /// Pops so many.
    VecPop(u8, u16),
    /// Gives back what the vector has not filled.
    VecShrink(u8),
    /// The vector ends.
    VecDrop(u8),

    /// Takes from a central stock.
    CentralTake(u8, Size),
    /// Gives a charge back to the central stock of its group; from half of all numbers on the newest.
    CentralGive(u8),
    /// Closes it.
    CentralRelease(u8),

    /// Begins a charge that waits, and polls it.
    Begin(u8, Size, Act),
    /// The same with a time of nothing.
    BeginTimed(u8, Size),
    /// The same until something else is ready, which it is at once.
    BeginUntil(u8, Size),
    /// Begins a charge that is delayed where a level is above its high, and polls it.
    BeginAbove(u8, Size),
    /// Begins a charge that blocks its thread for so many milliseconds at most, while the others go
    /// on.
    Wait(u8, Size, u16),
    /// So many milliseconds go by.
    Time(u16),
    /// Charges wait in lines of a tree of its own, for so many steps, drawn from a number.
    Lines(u8, u64),
    /// Sets of charges to many counters of a tree of its own, the same.
    Sets(u8, u64),
    /// Levels of pressure by usage, the same.
    Marks(u8, u64),
    /// Memory on nodes of several tiers, the same.
    Tiers(u8, u64),
    /// Polls a task.
    Poll(u8),
    /// Drops a task.
    DropTask(u8),

    /// A cache begins.
    Cache(u8, Nature, u8),
    /// A cache gets memory.
    Fill(u8, Size),
    /// A cache gives memory back of its own.
    Evict(u8, u64),
    /// A cache is no reclaimer any more.
    Unregister(u8),
    /// A cache ends.
    CacheDrop(u8),
    /// A cache keeps what it has promised: 0: it has nothing; 1: half of it; else all.
    Keep(u8, u8),
    /// Reclaims.
    Reclaim(u8, Size),
    /// Groups below that group give in proportion to what they have: of that row of sizes, asked for
    /// so many bytes at a time.
    ShareReclaim(u8, u8, u64),
    /// A listener begins; the number is an event.
    Listen(u8, u8, Act),
    /// A listener ends.
    Unlisten(u8),
    /// A hook begins, with memory that it lets go.
    Hook(u8, u64, Act),
    /// A hook ends.
    Unhook(u8),
    /// True: victims are chosen below that group.
    Oom(u8, bool),
    /// Victims are chosen below that group in an order of the run's own, by its number.
    OomBy(u8, u8),
    /// The subtree goes as one.
    OomGroup(u8, bool),
    /// The subtree is spared.
    OomExempt(u8, bool),
    /// Work of a group asks whether it is to go on, on its thread and as a task.
    Checkpoint(u8),
    /// So many incidents are kept from now on.
    Incidents(u8),

    /// Groups below that group, whose charges pay for what an allocator hands out, live for so many
    /// steps, drawn from a number.
    Cover(u8, u8, u64),
    /// A peak of a group's live bytes begins.
    Peak(u8),
    /// A peak starts over.
    PeakReset(u8),
    /// A peak ends.
    PeakDrop(u8),

    /// Adds to an item.
    StatAdd(u8, u8, i64),
    /// Reads items: 0 exact, 1 threshold, 2 stale, else within as many.
    StatRead(u8, u8),

    /// Charges and accounts memory on a node.
    Kmem(u8, u64, u8),
    /// Memory moves between nodes.
    KmemMove(u8, u8, u8, u64),
    /// Memory is to move between nodes, if there is room for it.
    KmemMigrate(u8, u8, u8, u64),
    /// The second becomes part of the first.
    KmemMerge(u8, u8),
    /// So many bytes of it are found on that node, and the others on none.
    KmemRelocate(u8, u8, u64),
    /// It is packed into some words, and becomes what it was; true: it ends there.
    KmemPack(u8, bool),
    /// A part on a node is freed.
    KmemShrink(u8, u8, u64),
    /// Parts on that node and on the next one are freed, of so many bytes each.
    KmemShrinkTwo(u8, u8, u64),
    /// Accounted memory moves to another group.
    KmemTransfer(u8, u8),
    /// It is freed.
    KmemDrop(u8),

    /// Takes all credit below a group back.
    Drain(u8),
    /// Settles what is dying.
    Settle,
    /// So many visits take idle credit home.
    Idle(u8),
    /// The thread gives its credit back.
    OwnCredit,
    /// Everything that can be read is read and compared.
    Look,
    /// The thread ends, and another takes its place.
    End,
    /// The last handle of the runtime is dropped.
    DropRuntime,

    /// So many groups become a thread's current one, each within those before, and end in an order by
    /// that number.
    Scopes(u8, u8, u16),
    /// So many bytes are of no group: the first group pays for them, then the other, and then none.
    Unowned(u8, u8, u16),
    /// A task waits for the event of that number.
    Await(u8, u8),
    /// Work asks whether usage is below all highs.
    BelowHigh(u8),
    /// Counters without groups live for so many steps, drawn from a number.
    Counters(u8, u64),
    /// Trees are applied to groups of their own, for so many steps, drawn from a number.
    Specs(u8, u64),
    /// A runtime of another configuration, drawn from a number.
    Runtimes(u64),
    /// Values are charged for what they weigh, so many, drawn from a number.
    Weighed(u8, u64),
    /// A charge meets another runtime.
    Foreign(u8),
    /// The group of that name below that group, or a new one.
    GetOrCreate(u8, u8),
    /// A group below that group ends with its value.
    ScopeOf(u8),
    /// Memory that is reported begins, or is reported to be that, or ends.
    Gauge(u8, Size),
    /// A tree of its own is reclaimed in the background, from so many percent of a max on, that moves
    /// by that number.
    Background(u8, u16),

    /// Something is done with an adapter.
    #[cfg(feature = "kmem")]
    With(Adapter),
}

/// Parts of the library that a run has operations of: a swarm.
#[derive(Clone, Copy, Debug)]
struct Swarm {
    tree: bool,
    limits: bool,
    marks: bool,
    observe: bool,
    importance: bool,
    forced: bool,
    parts: bool,
    further: bool,
    raw: bool,
    vectors: bool,
    central: bool,
    tasks: bool,
    caches: bool,
    listeners: bool,
    victims: bool,
    stats: bool,
    kmem: bool,
    idle: bool,
    ends: bool,
    faults: bool,
    /// Foreign code that does more than count: what it does is judged less strictly.
    acts: bool,
}

impl Swarm {
    /// What a run prefers it has.
    fn prefer(&mut self, focus: Option<(u8, u8)>) {
        let Some((from, to)) = focus else { return };
        let is_in = |row: u8| (from..to).contains(&row);
        self.tree |= is_in(32);
        self.limits |= is_in(42);
        self.marks |= is_in(48);
        self.parts |= is_in(54);
        self.vectors |= is_in(68);
        self.central |= is_in(72);
        self.tasks |= is_in(74);
        self.caches |= is_in(82);
        self.listeners |= is_in(87);
        self.victims |= is_in(89);
        self.stats |= is_in(91);
        self.kmem |= is_in(93);
        self.idle |= is_in(95);
    }

    /// Each part is there in half of the runs, so that crossings of any two come up without all of
    /// the others.
    fn draw(rng: &mut Xoshiro256PlusPlus) -> Swarm {
        let mut half = || rng.random_bool(0.4);
        Swarm {
            tree: half(),
            limits: half(),
            marks: half(),
            observe: half() && half(),
            importance: half() && half(),
            forced: half(),
            parts: half(),
            further: half(),
            raw: half(),
            vectors: half(),
            central: half(),
            tasks: half(),
            caches: half(),
            listeners: half(),
            victims: half() && half(),
            stats: half(),
            kmem: half(),
            idle: half(),
            ends: half(),
            faults: half() && half(),
            acts: half(),
        }
    }
}

const SIZES: [u64; 14] = [
    0, 1, 7, 16, 64, 100, 128, 300, 512, 1_000, 1_024, 2_048, 4_096, 20_000,
];

pub(crate) fn pick<T: Copy>(rng: &mut Xoshiro256PlusPlus, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

fn size(rng: &mut Xoshiro256PlusPlus) -> Size {
    match rng.random_range(0..12) {
        0 => Size::Less(pick(rng, &[0, 0, 1, 16, 128])),
        1 => Size::More(pick(rng, &[1, 1, 2, 64])),
        2..=3 => Size::Part(rng.random_range(1..=20)),
        4 => Size::Beyond(pick(rng, &[0, 1, 8, 16, 64])),
        5 => Size::Above(pick(rng, &[0, 1, 16, 64, 300])),
        _ => Size::Bytes(pick(rng, &SIZES)),
    }
}

/// Caches are asked for some pages at least, so some are larger than that.
fn size_of_cache(rng: &mut Xoshiro256PlusPlus) -> Size {
    if rng.random_bool(0.3) {
        Size::Bytes(pick(rng, &[16_384, 16_385, 50_000, 65_536, 300_000]))
    } else {
        size(rng)
    }
}

fn act(rng: &mut Xoshiro256PlusPlus, swarm: Swarm) -> Act {
    match rng.random_range(0..8) {
        _ if !swarm.acts => Act::Nothing,
        0 => Act::Panics,
        1 => Act::Charges(pick(rng, &SIZES)),
        2 => Act::Creates,
        3 => Act::Reads,
        _ => Act::Nothing,
    }
}

fn setup(rng: &mut Xoshiro256PlusPlus, swarm: Swarm) -> Setup {
    let max = pick(rng, &[u64::MAX, 3_000, 20_000, 100_000, 1 << 40]);
    // A central stock opens where there are stocks, and their budget leaves it a part.
    let opens = swarm.central && rng.random_bool(0.7);
    let budget = match opens {
        true => pick(rng, &[None, Some(2_048)]),
        false => pick(rng, &[None, None, None, Some(0), Some(128), Some(2_048)]),
    };
    Setup {
        threads: rng.random_range(1..=4),
        batch: match opens {
            true => pick(rng, &[256, 1_024, 1_024, 65_536]),
            false => pick(rng, &[0, 16, 64, 256, 1_024, 1_024, 65_536]),
        },
        adaptive: rng.random(),
        audit: rng.random_bool(0.7),
        fence: rng.random_bool(0.1),
        budget,
        max,
        groups_max: if swarm.tree {
            pick(rng, &[64, 64, 8])
        } else {
            64
        },
        nodes: if swarm.kmem { pick(rng, &[1, 2, 4]) } else { 1 },
        packed: rng.random_bool(0.2),
        recursive: rng.random_bool(0.3),
        incidents: pick(rng, &[0, 0, 3]),
        stalls: rng.random_bool(0.5),
        reclaim_time: RECLAIM_TIME,
        stat_batch: pick(rng, &[None, Some(0), Some(2), Some(64)]),
        delay: pick(rng, &[0, 50, 2_000]),
        adapters: false,
        schedule: 0,
    }
}

/// Rows of [`what`] that a run may prefer.
const FOCUSES: [Option<(u8, u8)>; 14] = [
    None,
    None,
    Some((32, 42)),
    Some((42, 48)),
    Some((48, 52)),
    Some((54, 62)),
    Some((68, 74)),
    Some((74, 82)),
    Some((74, 87)),
    Some((82, 87)),
    Some((87, 91)),
    Some((91, 95)),
    Some((95, 98)),
    Some((98, 108)),
];

/// Draws the script of a run.
pub fn draw(seed: u64) -> (Setup, Vec<Op>) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let schedule = seed;
    script(rng, |setup| Setup { schedule, ..setup }, |_| None)
}

/// Draws the script of a run with adapters. Every second operation or so is one of theirs.
#[cfg(feature = "adapters")]
pub fn draw_with_adapters(seed: u64) -> (Setup, Vec<Op>) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let swarm = adapters::AdapterSwarm::draw(rng);
    with_swarm(rng, seed, swarm)
}

/// Draws the script of a run with containers on nodes: what threads that run at once may share.
#[cfg(feature = "kmem")]
pub fn draw_with_containers(seed: u64) -> (Setup, Vec<Op>) {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    with_swarm(rng, seed, adapters::AdapterSwarm::of_containers())
}

#[cfg(feature = "kmem")]
fn with_swarm(
    rng: &mut Xoshiro256PlusPlus,
    schedule: u64,
    swarm: adapters::AdapterSwarm,
) -> (Setup, Vec<Op>) {
    let max = pick(rng, &[u64::MAX, 60_000, 200_000, 1 << 20, 1 << 40]);
    let nodes = pick(rng, &[1, 2, 2, 4]);
    let (setup, mut ops) = script(
        rng,
        |setup| Setup {
            adapters: true,
            schedule,
            max,
            nodes,
            // What waits for its delay is another state of each wait.
            delay: 0,
            ..setup
        },
        |rng| {
            // What the swarm has switched off is drawn anew, so that the others come as often.
            let drawn = (0..8).find_map(|_| adapters::draw(rng, swarm));
            drawn.map(What::With)
        },
    );
    // Pages and bodies are larger than what the core is charged for.
    for Op(_, what) in &mut ops {
        if let What::Create(_, _, Some(max)) = what {
            *max *= 40;
        }
    }
    (setup, ops)
}

fn script(
    rng: &mut Xoshiro256PlusPlus,
    change: impl FnOnce(Setup) -> Setup,
    mut of_adapters: impl FnMut(&mut Xoshiro256PlusPlus) -> Option<What>,
) -> (Setup, Vec<Op>) {
    let mut swarm = Swarm::draw(rng);
    // Some runs do one thing most of the time, so that two of a kind meet.
    let focus = pick(rng, &FOCUSES);
    swarm.prefer(focus);
    let setup = change(setup(rng, swarm));
    let length = rng.random_range(20..220);
    let mut ops: Vec<Op> = Vec::with_capacity(length);
    // A tree to begin with: two levels of tenants, with maxes or without.
    for number in 0..rng.random_range(1..6_u8) {
        let parent = rng.random_range(0..=number);
        ops.push(Op(0, create(rng, parent)));
    }
    while ops.len() < length {
        if let Some(what) = of_adapters(rng) {
            let thread = rng.random_range(0..setup.threads);
            #[cfg(feature = "kmem")]
            let more = adapters::follow(rng, &what);
            ops.push(Op(thread, what));
            #[cfg(feature = "kmem")]
            ops.extend(more.into_iter().map(|what| Op(thread, what)));
        }
        let row = match focus {
            Some((from, to)) if rng.random_bool(0.4) => rng.random_range(from..to),
            _ => rng.random_range(0..108),
        };
        if let Some(what) = what(rng, swarm, row) {
            // Two of one group wait, or of two, one goes, or all at the same time, and then the group.
            let goes = match what {
                What::Begin(group, ..) if rng.random_bool(0.15) => Some(group),
                _ => None,
            };
            // A max that comes below what a group holds, while some of it can be cancelled.
            let is_cancelled = match what {
                What::Hook(group, ..) if rng.random() => Some(group),
                _ => None,
            };
            let more = story(rng, swarm, &what);
            let is_delayed = match what {
                What::BeginAbove(group, _) if rng.random_bool(0.8) => Some(group),
                _ => None,
            };
            let moves = match what {
                What::Begin(group, Size::Beyond(_), _) if rng.random_bool(0.6) => Some(group),
                _ => None,
            };
            if let Some(group) = is_delayed.or(moves) {
                let thread = rng.random_range(0..setup.threads);
                let whole = match moves {
                    Some(_) => moves_on(rng, group, what),
                    None => delayed(rng, swarm, group, what),
                };
                ops.extend(whole.into_iter().map(|what| Op(thread, what)));
                continue;
            }
            // Two threads have credit of a group that goes, and nobody but visits looks for it.
            let is_left = match what {
                What::Offline(group) if swarm.idle && rng.random() => Some(group),
                _ => None,
            };
            if let Some(group) = is_left {
                let charge = What::Charge(group, Verb::Try, Size::Bytes(7));
                ops.extend([0, 0, 1, 1].map(|of| Op(of % setup.threads, charge.clone())));
            }
            let thread = rng.random_range(0..setup.threads);
            ops.push(Op(thread, what));
            if is_left.is_some() {
                ops.push(Op(thread, What::Idle(4)));
            }
            ops.extend(more.into_iter().map(|what| Op(thread, what)));
            if let Some(group) = goes {
                let other = rng.random_range(0..16);
                let other = pick(rng, &[group, other]);
                for group in [group, other] {
                    ops.push(Op(0, What::Begin(group, Size::More(1), Act::Nothing)));
                }
                let many = pick(rng, &[1, 6]);
                ops.extend((0..many).map(|_| Op(0, What::DropTask(rng.random()))));
                ops.push(Op(0, What::Time(20)));
                ops.push(Op(0, What::OfflineTree(group)));
            }
            if let Some(group) = is_cancelled {
                ops.push(Op(0, What::Oom(group, true)));
                ops.push(Op(0, What::Set(group, Kind::Max, size(rng))));
            }
        }
    }
    let promises = |op: &Op| matches!(op.1, What::Cache(_, Nature::Keeps, _));
    let reclaim_time = if ops.iter().any(promises) {
        PROMISE_TIME
    } else {
        setup.reclaim_time
    };
    (
        Setup {
            reclaim_time,
            ..setup
        },
        ops,
    )
}

/// What is to follow an operation, so that things meet which hardly would by chance.
fn story(rng: &mut Xoshiro256PlusPlus, swarm: Swarm, what: &What) -> Vec<What> {
    let pick_cache = |rng: &mut Xoshiro256PlusPlus| rng.next_u32() as u8;
    match *what {
        // A promise that nobody keeps: the cache is asked again, a while later.
        What::Cache(group, Nature::Forgets, _) => {
            let mut story: Vec<_> = (0..6)
                .map(|_| What::Fill(pick_cache(rng), Size::Bytes(3_000)))
                .collect();
            story.push(What::Set(0, Kind::Max, Size::Above(100)));
            for _ in 0..2 {
                let verb = pick(rng, &[Verb::Plain, Verb::WaitNot, Verb::Reclaims]);
                story.push(What::Charge(group, verb, Size::Bytes(500)));
                story.push(What::Time(20));
            }
            story
        }
        // A promise that is kept, then another one, for which a charge waits.
        What::Cache(group, Nature::Keeps, _) => {
            // Or two caches of a group do, or another one gives at once.
            let nature = pick(rng, &[Nature::Keeps, Nature::Honest]);
            let second = What::Cache(group, nature, rng.random_range(0..3));
            let mut story = Vec::from_iter(Some(second).filter(|_| rng.random_bool(0.5)));
            story.extend((0..4).map(|_| What::Fill(pick_cache(rng), Size::Bytes(3_000))));
            story.push(What::Set(0, Kind::Max, Size::Above(100)));
            for _ in 0..2 {
                let verb = pick(rng, &[Verb::Reclaims, Verb::Start, Verb::WaitNot]);
                story.push(What::Charge(group, verb, Size::Bytes(300)));
                if rng.random() {
                    story.push(What::Charge(group, Verb::Plain, Size::Bytes(300)));
                }
                story.extend((0..4).map(|of| What::Keep(of, rng.random_range(0..4))));
                story.push(What::Time(pick(rng, &[1, 20, 1_000])));
            }
            story.push(What::Reclaim(0, Size::Bytes(500)));
            story.push(What::Charge(group, Verb::Plain, Size::Bytes(300)));
            story
        }
        // A max, or a high, falls below what caches hold: what one does not give at once is asked of it
        // again, and no more than that.
        What::Cache(group, ..) if rng.random_bool(0.15) => {
            let natures = [Nature::Half, Nature::Half, Nature::Refills, Nature::Honest];
            let mut story = vec![What::Unset(0, Kind::Max), What::Unset(group, Kind::Max)];
            for _ in 0..2 {
                story.push(What::Cache(
                    group,
                    pick(rng, &natures),
                    rng.random_range(0..3),
                ));
            }
            story.extend((0..8).map(|_| What::Fill(pick_cache(rng), Size::Bytes(20_000))));
            let kinds = [Kind::Max, Kind::Max, Kind::High];
            for bytes in [30_000, 3_000] {
                let of = pick(rng, &[group, group, 0]);
                story.push(What::Set(of, pick(rng, &kinds), Size::Bytes(bytes)));
            }
            story.extend([What::Unset(group, Kind::Max), What::Unset(0, Kind::Max)]);
            story
        }
        // What is asked of several caches, some of which are in excess or protected, give nothing, or
        // begin later.
        What::Cache(group, ..) if rng.random_bool(0.3) => {
            let natures = [
                Nature::Honest,
                Nature::Honest,
                Nature::Keeps,
                Nature::Stubborn,
                Nature::PanicsAtOnce,
            ];
            let mut story = Vec::new();
            for _ in 0..2 {
                let any = rng.random_range(0..16);
                let of = pick(rng, &[group, any]);
                story.push(What::Cache(of, pick(rng, &natures), rng.random_range(0..3)));
            }
            story.extend((0..6).map(|_| What::Fill(pick_cache(rng), Size::Bytes(3_000))));
            for kind in [Kind::Soft, Kind::Soft, Kind::Low, Kind::Min] {
                let any = rng.random_range(0..16);
                let of = pick(rng, &[group, 0, any]);
                let bytes = pick(rng, &[0, 1_000, 4_000]);
                story.extend(rng.random_bool(0.4).then_some(What::Set(
                    of,
                    kind,
                    Size::Bytes(bytes),
                )));
            }
            for _ in 0..5 {
                let any = rng.random_range(0..16);
                let of = pick(rng, &[group, 0, any]);
                let bytes = Size::Bytes(pick(rng, &[301, 500, 3_000, 10_000]));
                story.push(match rng.random_range(0..6) {
                    0..3 => What::Reclaim(of, bytes),
                    3 => What::Charge(of, Verb::Start, Size::More(pick(rng, &[1, 300]))),
                    4 => What::Unregister(pick_cache(rng)),
                    _ => What::Keep(pick_cache(rng), rng.random_range(0..4)),
                });
            }
            story
        }
        // Of a group with two caches both are asked for the nearest one above, once it has ended.
        What::Cache(group, ..) if swarm.tree && rng.random_bool(0.15) => {
            let mut story = vec![What::Cache(group, Nature::Honest, rng.random_range(0..3))];
            for _ in 0..6 {
                story.push(What::Fill(pick_cache(rng), Size::Bytes(20_000)));
            }
            story.push(What::OfflineTree(group));
            story.push(What::Reclaim(0, Size::Bytes(300_000)));
            // Those that are given up, and registered again, for a group that has ended.
            for _ in 0..pick(rng, &[0, 1, 2]) {
                story.extend((0..8).map(What::Unregister));
                story.push(What::Reclaim(0, Size::Bytes(10_000)));
            }
            story
        }
        // A charge that waits for nothing has more than one cache asked: the first gives nothing.
        What::Cache(group, ..) if rng.random_bool(0.25) => {
            let cache = |rng: &mut Xoshiro256PlusPlus, nature| {
                What::Cache(rng.random_range(0..16), nature, rng.random_range(0..3))
            };
            let mut story = vec![cache(rng, Nature::Stubborn), cache(rng, Nature::Honest)];
            for _ in 0..6 {
                story.push(What::Fill(pick_cache(rng), Size::Bytes(3_000)));
            }
            story.push(What::Set(0, Kind::Max, Size::Above(100)));
            for _ in 0..2 {
                let verb = pick(rng, &[Verb::WaitNot, Verb::WaitNot, Verb::Reclaims]);
                story.push(What::Charge(group, verb, Size::Bytes(500)));
            }
            story
        }
        // Of two groups the maxes are parts of one that falls, or their charges wait for more than
        // that.
        What::Fill(..) | What::Begin(..) if swarm.limits && rng.random_bool(0.15) => {
            let groups = [rng.random_range(0..16), rng.random_range(0..16)];
            let mut story = vec![What::Set(0, Kind::Max, Size::Above(100_000))];
            for group in groups {
                let cache = What::Cache(group, Nature::Honest, 0);
                story.extend(matches!(what, What::Fill(..)).then_some(cache));
                story.push(What::SetPart(group, Kind::Max, rng.random_range(1..=100)));
            }
            for _ in 0..4 {
                story.push(What::Fill(pick_cache(rng), Size::Bytes(3_000)));
            }
            for group in groups {
                story.push(What::Begin(group, Size::More(1), Act::Nothing));
            }
            story.push(What::Set(0, Kind::Max, Size::Above(pick(rng, &[0, 100]))));
            story
        }
        // What waits above is too large for a max that acts again.
        What::Begin(group, ..) if swarm.observe && rng.random_bool(0.3) => {
            let above = rng.random_range(0..16);
            vec![
                What::Observe(above, true),
                What::Set(group, Kind::Max, Size::Bytes(1)),
                What::Observe(above, false),
            ]
        }
        // More than three hold what is full, and the last holds most of it.
        What::Create(parent, ..) if rng.random_bool(0.1) => {
            let mut story: Vec<_> = (0..4)
                .map(|name| What::Create(parent, name, None))
                .collect();
            let sizes = [7, 16, 64, 300, 1_000, 7];
            let charge =
                |(group, bytes): (u8, u64)| What::Charge(group, Verb::Try, Size::Bytes(bytes));
            story.extend((1..7).zip(sizes).map(charge));
            story.push(What::Set(parent, Kind::Max, Size::Above(10)));
            story.push(What::Charge(1, Verb::Try, Size::Bytes(100)));
            story
        }
        // Work is delayed above a high, whatever it has charged last; and is not once its group has
        // gone, or is cancelled.
        What::Checkpoint(group) if rng.random_bool(0.7) => {
            let mut story: Vec<_> = (0..4).map(What::DropTask).collect();
            story.push(What::Unset(group, Kind::Max));
            let is_victim = rng.random();
            if is_victim {
                story.push(What::Unset(0, Kind::Max));
                story.push(What::Hook(group, 300, Act::Nothing));
                story.push(What::Oom(group, true));
            }
            story.push(What::Charge(group, Verb::Try, Size::Bytes(4_096)));
            story.push(What::Set(
                group,
                Kind::High,
                Size::Bytes(pick(rng, &[0, 1_024, 3_000])),
            ));
            story.push(What::Checkpoint(group));
            if is_victim {
                story.push(What::Set(group, Kind::MaxNow, Size::Above(0)));
                story.push(What::Charge(group, Verb::Reclaims, Size::Bytes(1)));
            }
            story.extend([What::Time(20), What::BelowHigh(group)]);
            story.extend([What::OfflineTree(group), What::BelowHigh(group)]);
            story
        }
        // What a thread charges ahead is no excess above a high.
        What::Set(group, Kind::High, _) if rng.random_bool(0.3) => vec![
            What::Drain(0),
            What::Set(group, Kind::High, Size::Above(100)),
            What::Charge(group, Verb::IfRoom, Size::Bytes(64)),
        ],
        // A high is a part of a max, which falls.
        What::Fill(..) if swarm.marks && rng.random_bool(0.3) => {
            let group = rng.random_range(0..16);
            vec![
                What::Set(0, Kind::Max, Size::Above(100_000)),
                What::SetPart(group, Kind::High, rng.random_range(1..=100)),
                What::SetPart(
                    rng.random_range(0..16),
                    Kind::Max,
                    rng.random_range(1..=100),
                ),
                What::Set(0, Kind::Max, Size::Above(pick(rng, &[0, 100, 3_000]))),
            ]
        }
        // Or one that has what is missing.
        What::Fill(..) if rng.random_bool(0.2) => {
            let verb = pick(rng, &[Verb::WaitNot, Verb::WaitNot, Verb::Reclaims]);
            let group = rng.random_range(0..16);
            vec![What::Charge(group, verb, Size::More(pick(rng, &[1, 64])))]
        }
        // What a central stock had before its limits only count is given by no walk.
        What::CentralGive(_) if rng.random_bool(if swarm.observe { 0.4 } else { 0.15 }) => {
            let room = pick(rng, &[300, 1_000, 3_000]);
            let mut story = vec![What::Set(0, Kind::Max, Size::Above(room))];
            for _ in 0..4 {
                let group = rng.random_range(0..16);
                story.push(What::Charge(group, Verb::Try, Size::Bytes(64)));
                story.push(What::CentralGive(rng.random()));
            }
            // Or is given while they do.
            let at = rng.random_range(1..=story.len());
            story.insert(at, What::Observe(0, true));
            story.push(What::Charge(0, Verb::Try, Size::Bytes(4_096)));
            for group in 0..6 {
                story.push(What::CentralTake(group, Size::Bytes(16)));
            }
            story
        }
        // It is open, and then its group is so far above a high that no credit would help.
        What::CentralGive(_) if rng.random_bool(if swarm.marks { 0.6 } else { 0.3 }) => {
            let group = rng.random_range(0..16);
            let bytes = pick(rng, &[12, 48, 128]);
            let mut story = vec![What::Unset(group, Kind::Max)];
            if rng.random() {
                let max = pick(rng, &[10_000, 40_000, 200_000]);
                story.push(What::Set(group, Kind::Max, Size::Above(max)));
            }
            let high = pick(rng, &[150, 300, 1_000]);
            story.push(What::Set(group, Kind::High, Size::Above(high)));
            for _ in 0..3 {
                story.push(What::Charge(group, Verb::Try, Size::Bytes(bytes)));
                story.push(What::CentralGive(u8::MAX));
            }
            let force = |bytes| What::Charge(group, Verb::Force, Size::Bytes(bytes));
            story.push(force(pick(rng, &[3_000, 9_000, 30_000])));
            story.extend([force(bytes), What::CentralGive(u8::MAX)]);
            story.push(What::Unset(group, Kind::High));
            story
        }
        // It has a part of what is taken, and the rest would be above a high.
        What::CentralGive(_) if rng.random_bool(0.2) => {
            let group = rng.random_range(0..16);
            let mut story = vec![
                What::Unset(group, Kind::High),
                What::Set(group, Kind::Max, Size::Above(3_000)),
            ];
            for _ in 0..3 {
                story.push(What::Charge(group, Verb::Try, Size::Bytes(64)));
                story.extend((0..3).map(|_| What::CentralGive(rng.random())));
            }
            story.push(What::Set(group, Kind::High, Size::Above(300)));
            let bytes = pick(rng, &[65, 400, 1_000]);
            story.push(What::CentralTake(group, Size::Bytes(bytes)));
            story.push(What::Unset(group, Kind::High));
            story
        }
        // All credit comes home, that of a central stock too.
        What::CentralGive(_) if rng.random_bool(0.3) => {
            let mut story = Vec::new();
            for _ in 0..4 {
                let group = rng.random_range(0..16);
                story.push(What::Charge(group, Verb::Try, Size::Bytes(64)));
                story.push(What::CentralGive(rng.random()));
            }
            story.push(What::Drain(if rng.random() {
                0
            } else {
                rng.random_range(0..16)
            }));
            story
        }
        // A max that moves by itself falls below what is waited for; then the program sets it.
        What::Begin(group, ..) if swarm.limits && rng.random_bool(0.3) => {
            let mut story = vec![
                What::MoveMax(group, Size::Bytes(64), rng.random()),
                What::EndVainWaits(0, false),
            ];
            story.push(match rng.random_range(0..5) {
                0 => What::Time(1_000),
                1 => What::EndVainWaits(group, true),
                2 => What::MoveMax(group, Size::Bytes(5_000), false),
                _ => What::Set(group, Kind::Max, Size::Bytes(pick(rng, &[63, 64, 1_000]))),
            });
            story.push(What::EndVainWaits(0, false));
            story
        }
        // A charge passes one in line, and is refused above.
        What::Begin(group, ..) if swarm.limits && rng.random_bool(0.25) => {
            let small = || What::Charge(group, Verb::Try, Size::Bytes(300));
            vec![
                What::Charge(group, Verb::Try, Size::Bytes(600)),
                What::Set(group, Kind::Max, Size::Above(400)),
                What::Begin(group, Size::Bytes(500), Act::Nothing),
                What::Set(0, Kind::Max, Size::Above(100)),
                small(),
                What::Unset(0, Kind::Max),
                small(),
            ]
        }
        // Small charges pass the first in line until it has been passed far enough; then a small
        // one waits, too, and the first goes.
        What::Begin(group, ..) if rng.random_bool(0.25) => {
            let other = if rng.random() {
                group
            } else {
                rng.random_range(0..16)
            };
            let mut story = vec![What::Unset(group, Kind::Max), What::Unset(other, Kind::Max)];
            story.push(What::Set(0, Kind::Max, Size::Above(600)));
            story.push(What::Begin(group, Size::Bytes(700), Act::Nothing));
            for _ in 0..8 {
                story.push(What::Charge(other, Verb::Try, Size::Bytes(100)));
                story.push(What::Drop(rng.random()));
            }
            story.push(What::Begin(other, Size::Bytes(50), Act::Nothing));
            story.push(match rng.random_range(0..4) {
                0 => What::Set(group, Kind::Max, Size::Bytes(600)),
                1 => What::OfflineTree(group),
                _ => What::DropTask(rng.random()),
            });
            story
        }
        // A line takes what a cache above it has, also where it has moved there.
        What::Begin(group, ..) if swarm.caches && rng.random_bool(0.3) => {
            let mut story = vec![What::Cache(0, Nature::Honest, 0)];
            story.extend((0..6).map(|_| What::Fill(pick_cache(rng), Size::Bytes(3_000))));
            story.push(What::Charge(group, Verb::Try, Size::Bytes(300)));
            story.push(What::Set(group, Kind::Max, Size::Above(100)));
            story.push(What::Set(0, Kind::Max, Size::Above(100)));
            story.push(What::Begin(group, Size::Bytes(200), Act::Nothing));
            story.push(What::Unset(group, Kind::Max));
            story
        }
        // Limits above shares count only, and act again.
        What::Share(group, _) if swarm.observe && rng.random_bool(0.4) => vec![
            What::Set(0, Kind::Max, Size::Above(100_000)),
            What::Share(group, 3),
            What::Share(rng.random_range(0..16), 2),
            What::Observe(0, true),
            What::Look,
            What::Observe(0, false),
            What::Look,
        ],
        // Two groups have credit of one thread.
        What::OwnCredit => {
            let mut story = Vec::new();
            for _ in 0..4 {
                let group = rng.random_range(0..16);
                story.push(What::Charge(group, Verb::Try, Size::Bytes(7)));
            }
            story.push(What::OwnCredit);
            story
        }
        // Parts of parts, while those above them go one after the other, and what they divide moves.
        What::Share(..) if rng.random_bool(0.3) => {
            let groups = 1..8;
            let mut story = vec![What::Set(0, Kind::Max, Size::Above(100_000))];
            story.extend(groups.clone().map(|of| What::Share(of, 2)));
            let moves = rng.random_bool(0.6);
            for of in groups {
                story.extend([What::Look, What::Share(of, 0)]);
                let max = Size::Above(pick(rng, &[60_000, 80_000, 100_000]));
                story.extend(moves.then_some(What::Set(0, Kind::Max, max)));
            }
            story.push(What::Look);
            story
        }
        // Parts of parts, which move with the shares beside those above them.
        What::Share(..) if rng.random_bool(0.4) => {
            let share = |rng: &mut Xoshiro256PlusPlus| {
                What::Share(rng.random_range(0..16), pick(rng, &[0, 0, 1, 2, 3, 5, 8]))
            };
            let mut story = vec![What::Set(0, Kind::Max, Size::Above(100_000))];
            story.extend((0..8).map(|_| share(rng)));
            for _ in 0..3 {
                story.extend([What::Look, share(rng)]);
            }
            story.push(What::Look);
            story
        }
        // A victim has to be chosen, and the order is asked.
        What::OomBy(group, number) if rng.random_bool(0.6) => {
            let other = rng.random_range(0..16);
            let mut story = Vec::new();
            for group in [0, group, other] {
                story.push(What::Unset(group, Kind::Max));
            }
            // One above it has what the group asks for as its own, unless the group is exempt.
            let above = if rng.random() { 0 } else { group };
            for group in [above, group, other] {
                story.push(What::Hook(group, 300, Act::Nothing));
            }
            story.push(What::OomBy(0, number));
            // Another group gets an order, or loses one; or the same gets a second one.
            for _ in 0..rng.random_range(0..3) {
                let of = pick(rng, &[0, group, other]);
                story.push(if rng.random_bool(0.7) {
                    What::OomBy(of, rng.random_range(0..5))
                } else {
                    What::Oom(of, true)
                });
            }
            story.push(What::Set(0, Kind::Max, Size::Above(100)));
            let is_exempt = rng.random_bool(0.4);
            story.push(What::OomExempt(other, is_exempt));
            story.push(What::Charge(other, Verb::Plain, Size::Bytes(200)));
            story.push(What::OomExempt(other, false));
            story
        }
        // Of a group that goes as one, within another that does, the other goes.
        What::Hook(group, ..) if rng.random_bool(0.2) => {
            let other = rng.random_range(0..16);
            vec![
                What::Charge(group, Verb::Try, Size::Bytes(300)),
                What::Hook(other, 100, Act::Nothing),
                What::OomGroup(group, true),
                What::OomGroup(0, true),
                What::Oom(0, true),
                What::Set(0, Kind::MaxNow, Size::Above(0)),
                What::Charge(other, Verb::Reclaims, Size::Bytes(1)),
            ]
        }
        // What is protected of a group gives for charges that matter as much, and for no others.
        What::Cache(group, ..) if rng.random_bool(0.15) => {
            let mut story = vec![
                What::Cache(group, Nature::Honest, 0),
                What::Importance(group, rng.random_range(0..3)),
                What::Set(group, Kind::Low, Size::Bytes(300_000)),
            ];
            for _ in 0..6 {
                story.push(What::Fill(pick_cache(rng), Size::Bytes(20_000)));
            }
            story.push(What::Set(0, Kind::Max, Size::Above(100)));
            for _ in 0..3 {
                let other = rng.random_range(0..16);
                if rng.random() {
                    story.push(What::Importance(other, rng.random_range(0..3)));
                }
                let verb = pick(rng, &[Verb::Plain, Verb::WaitNot, Verb::Reclaims]);
                story.push(What::Charge(other, verb, Size::Bytes(500)));
            }
            story
        }
        // Both counters have credit, which is idle for a while.
        What::ChargeSet(group, ..) if rng.random_bool(0.3) => vec![
            What::ChargeSet(group, true, Size::Bytes(7), Size::Bytes(7)),
            What::ChargeSet(group, true, Size::Bytes(7), Size::Bytes(7)),
            What::DropAll(group),
            What::Idle(3),
        ],
        // What was live before a peak began is the highest still, whatever peaks end.
        What::Peak(group) if rng.random_bool(0.5) => vec![
            What::Charge(group, Verb::Try, Size::Bytes(4_096)),
            What::Peak(group),
            What::DropAll(group),
            What::PeakReset(rng.random()),
            What::PeakReset(rng.random()),
            What::PeakDrop(rng.random()),
            What::PeakDrop(rng.random()),
        ],
        // The first of a set is full, and has a cache asked; then the other one refuses.
        What::ChargeSet(group, ..) if rng.random_bool(0.3) => {
            let mut story = vec![
                What::Set(group, Kind::FurtherMax, Size::Above(64)),
                What::Cache(group, Nature::Honest, 0),
            ];
            for _ in 0..4 {
                story.push(What::Fill(pick_cache(rng), Size::Bytes(3_000)));
            }
            story.push(What::Set(group, Kind::Max, Size::Above(100)));
            story.push(What::Charge(group, Verb::Try, Size::Bytes(500)));
            let memory = pick(rng, &[Size::Bytes(300), Size::More(1)]);
            story.push(What::ChargeSet(group, false, memory, Size::More(1)));
            story
        }
        // A tier has room for a part of what is to come there.
        What::Kmem(group, ..) if rng.random_bool(0.3) => {
            let some = |rng: &mut Xoshiro256PlusPlus| pick(rng, &[64, 100, 300]);
            let mut story = vec![What::Unset(group, Kind::Max), What::Unset(0, Kind::Max)];
            story.push(What::Kmem(group, 300, rng.random_range(1..5)));
            story.push(What::KmemMove(rng.random(), 4, 1, some(rng)));
            let top = if rng.random() { group } else { 0 };
            story.push(What::Set(top, Kind::TierMax, Size::Bytes(some(rng))));
            for _ in 0..3 {
                story.push(What::KmemMigrate(
                    rng.random(),
                    rng.random_range(1..5),
                    0,
                    some(rng),
                ));
            }
            story.push(What::Kmem(group, some(rng), rng.random_range(0..5)));
            story.push(What::KmemTransfer(rng.random(), rng.random()));
            story
        }
        // A vector that is to grow by more than it needs finds no room for that.
        What::VecNew(group) if rng.random_bool(0.4) => {
            let mut story = Vec::new();
            story.extend((0..6).map(|of| What::VecPush(of, Verb::Try, 40)));
            let room = pick(rng, &[330, 350, 400, 500]);
            story.push(What::Set(group, Kind::Max, Size::Above(room)));
            let verb = verb(rng, swarm);
            story.extend((0..6).map(|of| What::VecPush(of, verb, 0)));
            story.push(What::Unset(group, Kind::Max));
            story
        }
        // A high that is only observed asks nobody.
        What::Observe(group, true) if rng.random_bool(0.3) => vec![
            What::Cache(group, Nature::Honest, rng.random_range(1..3)),
            What::Fill(rng.random(), Size::Bytes(3_000)),
            What::Fill(rng.random(), Size::Bytes(3_000)),
            What::Observe(group, true),
            What::Set(group, Kind::High, Size::Bytes(1_000)),
            What::Observe(group, false),
            What::Unset(group, Kind::High),
        ],
        // The limits of one above act again, and its own still count only.
        What::Observe(group, true) if rng.random_bool(0.5) => vec![
            What::Charge(group, Verb::Try, Size::Bytes(300)),
            What::Observe(0, true),
            What::Set(group, Kind::Max, Size::Above(0)),
            What::Observe(0, false),
            What::Charge(group, Verb::Try, Size::Bytes(100)),
        ],
        // The root would have groups cancelled, and the nearest policy says that none is.
        What::Hook(group, ..) if rng.random_bool(0.15) => vec![
            What::Unset(0, Kind::Max),
            What::Oom(0, true),
            What::Oom(group, rng.random_bool(0.2)),
            What::Charge(group, Verb::Try, Size::Bytes(300)),
            What::Set(group, Kind::MaxNow, Size::Above(0)),
            What::Charge(group, Verb::Plain, Size::Bytes(64)),
        ],
        // Of two that go as one each matters as much as both do.
        What::Hook(group, ..) if rng.random_bool(0.2) => {
            let other = rng.random_range(0..16);
            let mut story = vec![
                What::Charge(group, Verb::Try, Size::Bytes(300)),
                What::Hook(other, 100, Act::Nothing),
                What::OomGroup(0, true),
            ];
            for of in [group, other] {
                story.push(What::Importance(of, rng.random_range(0..3)));
            }
            story.push(What::Oom(0, true));
            story.push(What::Set(0, Kind::Max, Size::Above(100)));
            for of in [group, other, rng.random_range(0..16)] {
                story.push(What::Charge(of, Verb::Plain, Size::Bytes(200)));
            }
            story
        }
        // Two victims in two domains, of which one gives all that it has.
        What::Hook(group, ..) if rng.random_bool(0.3) => {
            let other = rng.random_range(0..16);
            let mut story = vec![What::Charge(group, Verb::Try, Size::Bytes(300))];
            story.push(What::Hook(other, 100, Act::Nothing));
            for group in [group, other] {
                story.push(What::Oom(group, true));
                story.push(What::Charge(group, Verb::Try, Size::More(1)));
                story.push(What::Set(group, Kind::MaxNow, Size::Above(0)));
                story.push(What::Charge(group, Verb::Reclaims, Size::Bytes(1)));
            }
            story
        }
        _ => Vec::new(),
    }
}

/// A charge waits at its own max for what is left above, and the max goes: it moves to the line
/// above, where others have credit or charge meanwhile.
fn moves_on(rng: &mut Xoshiro256PlusPlus, group: u8, begins: What) -> Vec<What> {
    let mut story = Vec::new();
    let other = |rng: &mut Xoshiro256PlusPlus| rng.random_range(0..16);
    if rng.random_bool(0.7) {
        // Earlier ones would stand before it.
        story.extend((0..4).map(What::DropTask));
        // What is left above fits below the group's own max.
        let (held, room) = (pick(rng, &[600, 4_096]), pick(rng, &[400, 3_000]));
        story.push(What::Unset(group, Kind::Max));
        story.push(What::Charge(group, Verb::Try, Size::Bytes(held)));
        story.push(What::Set(group, Kind::Max, Size::Above(50)));
        story.push(What::Set(0, Kind::Max, Size::Above(room)));
    }
    for _ in 0..rng.random_range(0..4) {
        story.push(What::Charge(other(rng), Verb::Plain, Size::Bytes(7)));
    }
    story.push(begins);
    if rng.random_bool(0.3) {
        let other = other(rng);
        story.extend((0..4).map(|_| What::Charge(other, Verb::Plain, Size::Bytes(1))));
    }
    story.push(What::Unset(group, Kind::Max));
    if rng.random() {
        // It looks where it is, goes, and no time is counted for it any more.
        story.extend((0..4).map(What::Poll));
        story.push(What::Time(20));
        story.extend((0..4).map(What::DropTask));
        story.push(What::Time(20));
    }
    story
}

/// A charge that is delayed above a high, and what ends the delay: time, usage that falls, a group
/// that goes offline, a victim that is chosen.
fn delayed(rng: &mut Xoshiro256PlusPlus, swarm: Swarm, group: u8, begins: What) -> Vec<What> {
    let ends = rng.random_range(0..12);
    let is_victim = ends < 4 && (swarm.victims || rng.random_bool(0.5));
    let mut story = Vec::new();
    if rng.random() {
        // Else a max is in the way before any high is.
        story.extend([0, group].map(|group| What::Unset(group, Kind::Max)));
    }
    if is_victim {
        story.push(What::Hook(group, 300, Act::Nothing));
        story.push(What::Oom(group, true));
    }
    // So that what is left of a delayed charge alone is below it, and credit beside that is not.
    let by_credit = ends >= 10;
    // Or so that nothing but credit is above it to begin with.
    let is_credit = by_credit && rng.random();
    if is_credit {
        story.push(What::Charge(group, Verb::Try, Size::Bytes(7)));
        story.push(What::Set(group, Kind::High, Size::Above(200)));
        story.push(What::Charge(group, Verb::Try, Size::Bytes(1)));
        story.extend([50, 100, 300].map(|bytes| What::BeginAbove(group, Size::Bytes(bytes))));
        return story;
    }
    let high = if by_credit {
        Size::Bytes(1_000)
    } else {
        let highs = [Size::Bytes(0), Size::Bytes(100), Size::Above(16)];
        pick(rng, &highs)
    };
    story.push(What::Set(group, Kind::High, high));
    if rng.random() {
        let high = pick(rng, &[0, 16, 100_000]);
        story.push(What::Set(0, Kind::High, Size::Above(high)));
    }
    let more = pick(rng, &[100, 1_024, 4_096]);
    // A fifth above its high, a charge of a page is delayed for some looks.
    let is_between = !by_credit && rng.random_bool(0.3);
    if is_between {
        story.push(What::Set(group, Kind::High, Size::Bytes(20_000)));
    }
    let more = if by_credit || is_between {
        20_000
    } else {
        more
    };
    story.push(What::Charge(group, Verb::Try, Size::Bytes(more)));
    // Work that asks at a checkpoint is delayed as well.
    if rng.random() {
        story.extend((0..10).map(What::DropTask));
        story.push(What::Checkpoint(group));
    }
    if by_credit {
        story.push(What::BeginAbove(group, Size::Bytes(900)));
        story.push(What::Charge(group, Verb::Try, Size::Bytes(7)));
        if rng.random() {
            // By then it is looked at seldom.
            story.push(What::Time(1_000));
        }
    } else if is_between {
        let bytes = pick(rng, &[3_000, 4_096, 5_000]);
        story.push(What::BeginAbove(group, Size::Bytes(bytes)));
        story.extend((0..4).map(|_| What::Time(pick(rng, &[5, 10, 20]))));
    } else {
        // What ends one ends the other.
        if rng.random_bool(0.8) {
            story.push(begins.clone());
        }
        story.push(begins);
    }
    match ends {
        _ if swarm.observe && rng.random_bool(0.3) => {
            story.push(What::Observe(0, true));
            story.extend([What::Time(20), What::Time(20)]);
        }
        _ if is_victim => story.push(What::Set(group, Kind::Max, Size::Bytes(1))),
        0..4 => story.push(What::OfflineTree(group)),
        4..6 => story.push(What::Unset(group, Kind::High)),
        6 => story.push(What::Set(group, Kind::High, Size::Above(0))),
        7 => story.push(What::Poll(rng.random())),
        8..10 if rng.random() => story.extend((0..6).map(|_| What::Drop(rng.random()))),
        // What comes back may be credit, which is above the high as well.
        _ => story.push(What::DropAll(group)),
    }
    for _ in 0..rng.random_range(0..6) {
        story.push(What::Time(pick(rng, &[1, 10, 20, 20, 1_000])));
    }
    story
}

fn create(rng: &mut Xoshiro256PlusPlus, parent: u8) -> What {
    let max = pick(rng, &[None, None, Some(100), Some(1_000), Some(5_000)]);
    What::Create(parent, rng.random_range(0..12), max)
}

fn verb(rng: &mut Xoshiro256PlusPlus, swarm: Swarm) -> Verb {
    let verb = pick(
        rng,
        &[
            Verb::Plain,
            Verb::Plain,
            Verb::Plain,
            Verb::Try,
            Verb::Try,
            Verb::Reclaims,
            Verb::Start,
            Verb::Now,
            Verb::IfRoom,
            Verb::WaitNot,
            Verb::Force,
        ],
    );
    match verb {
        Verb::Force if !swarm.forced => Verb::Plain,
        verb => verb,
    }
}

/// One operation, or none where the swarm has switched its part off.
fn what(rng: &mut Xoshiro256PlusPlus, swarm: Swarm, row: u8) -> Option<What> {
    // Most subjects are among few, so that operations meet.
    let one = |rng: &mut Xoshiro256PlusPlus| rng.next_u32() as u8 % 16;
    let (a, b) = (one(rng), one(rng));
    let made = match row {
        0..22 => What::Charge(a, verb(rng, swarm), size(rng)),
        22 if rng.random_bool(0.2) => What::DropAll(a),
        22..32 => What::Drop(a),
        32..42 if swarm.tree => match rng.random_range(0..13) {
            0..=3 => create(rng, a),
            12 => What::CreateWithPercent(a, b, rng.random_range(1..=100)),
            11 => What::CreateWith(a, b, rng.random_range(0..7)),
            4 => What::CloneHandle(a),
            5 | 6 => What::DropHandle(a),
            7 | 8 => What::Offline(a),
            9 => What::OfflineTree(a),
            _ => What::Find(a),
        },
        42..48 if swarm.limits => {
            let kinds = [
                Kind::Max,
                Kind::Max,
                Kind::MaxNow,
                Kind::FurtherMax,
                Kind::TierMax,
                Kind::Soft,
                Kind::Low,
                Kind::Min,
            ];
            let kind = pick(rng, &kinds);
            match rng.random_range(0..8) {
                7 if rng.random() => What::EndVainWaits(a, rng.random()),
                7 => What::MoveMax(a, size(rng), rng.random()),
                0 => What::Unset(a, kind),
                1 => What::Batch(a, pick(rng, &[0, 64, 1_024])),
                2 => {
                    let kinds = [Kind::Soft, Kind::Low, Kind::Min, Kind::Max, Kind::High];
                    let most = if swarm.marks { 5 } else { 4 };
                    What::SetPart(a, pick(rng, &kinds[..most]), rng.random_range(1..=100))
                }
                _ => What::Set(a, kind, size(rng)),
            }
        }
        48..52 if swarm.marks => match rng.random_range(0..5) {
            0 | 4 => What::Thresholds(a, pick(rng, &[0, 50, 80]), pick(rng, &[0, 60, 95, 100])),
            1 => What::Unset(a, pick(rng, &[Kind::High, Kind::Mark])),
            _ if rng.random_bool(0.2) => What::Marks(rng.random_range(10..80), rng.random()),
            _ if rng.random_bool(0.1) => What::Background(pick(rng, &[25, 50, 80]), rng.random()),
            _ => What::Set(a, pick(rng, &[Kind::High, Kind::Mark]), size(rng)),
        },
        52..53 if swarm.observe => What::Observe(a, rng.random()),
        53..54 if swarm.importance => What::Importance(a, rng.random_range(0..3)),
        54..62 if swarm.parts => match rng.random_range(0..9) {
            0 | 1 => What::Grow(a, verb(rng, swarm), size(rng)),
            2 => What::Shrink(a, pick(rng, &SIZES)),
            3 => What::Resize(a, verb(rng, swarm), size(rng)),
            4 => What::Split(a, pick(rng, &SIZES)),
            5 => What::Take(a),
            6 => What::Merge(a, b),
            _ => What::Transfer(a, b),
        },
        62..65 if swarm.further && rng.random_bool(0.2) => {
            What::Sets(rng.random_range(10..80), rng.random())
        }
        62..65 if swarm.further => What::ChargeSet(a, rng.random(), size(rng), size(rng)),
        65..68 if swarm.raw => match rng.random_range(0..6) {
            0 | 1 => What::RawCharge(a, verb(rng, swarm), size(rng)),
            2 => What::IntoRaw(a),
            3 => What::FromRaw(a),
            _ => What::RawUncharge(a, pick(rng, &SIZES)),
        },
        68..72 if swarm.vectors => match rng.random_range(0..8) {
            0 | 1 => What::VecNew(a),
            2..=4 => What::VecPush(a, verb(rng, swarm), pick(rng, &[1, 3, 40, 300, 0, 0])),
            5 => What::VecPop(a, pick(rng, &[1, 3, 40, 300])),
            6 => What::VecShrink(a),
            _ => What::VecDrop(a),
        },
        72..74 if swarm.central => match rng.random_range(0..5) {
            0 | 1 => What::CentralTake(a, size(rng)),
            2 | 3 => What::CentralGive(a),
            _ => What::CentralRelease(a),
        },
        74..82 if swarm.tasks && rng.random_bool(0.1) => {
            What::Lines(rng.random_range(10..100), rng.random())
        }
        74..82 if swarm.tasks => match rng.random_range(0..14) {
            11..=13 => What::BeginAbove(a, size(rng)),
            8 | 9 => What::Wait(a, size(rng), pick(rng, &[1, 20, 300, 5_000])),
            10 => What::Time(pick(rng, &[1, 20, 20, 1_000])),
            0 | 1 => What::Begin(a, Size::Beyond(pick(rng, &[0, 0, 1, 8])), act(rng, swarm)),
            2 | 3 => What::Begin(a, size(rng), act(rng, swarm)),
            4 if rng.random() => What::BeginUntil(a, size(rng)),
            4 => What::BeginTimed(a, size(rng)),
            5 | 6 => What::Poll(a),
            _ => What::DropTask(a),
        },
        82..87 if swarm.caches => match rng.random_range(0..11) {
            10 => What::Keep(a, rng.random_range(0..4)),
            0..=2 => What::Cache(a, nature(rng), rng.random_range(0..3)),
            3..=5 => What::Fill(a, size_of_cache(rng)),
            6 => What::Evict(a, pick(rng, &SIZES)),
            7 => What::Unregister(a),
            8 => What::CacheDrop(a),
            9 if rng.random_bool(0.3) => {
                let want = pick(rng, &[4 << 10, 20_000, 32 << 10]);
                What::ShareReclaim(a, rng.random_range(0..4), want)
            }
            _ => What::Reclaim(a, size_of_cache(rng)),
        },
        87..89 if swarm.listeners => match rng.random_range(0..3) {
            0 | 1 => {
                let event = pick(rng, &[1, 2, 2, 3, 3, 6, 7, 8, 9, 10]);
                What::Listen(a % 4, event, act(rng, swarm))
            }
            _ => What::Unlisten(a),
        },
        89..91 if swarm.victims => match rng.random_range(0..7) {
            0..=2 => What::Hook(a, pick(rng, &SIZES), act(rng, swarm)),
            3 => What::Unhook(a),
            4 => What::Oom(a, rng.random_bool(0.7)),
            5 if rng.random() => What::OomBy(a, pick(rng, &[0, 1, 2, 3, 4, 5, 5])),
            5 => What::OomGroup(a, rng.random()),
            _ => What::OomExempt(a, rng.random()),
        },
        91..93 if swarm.stats => match rng.random_range(0..3) {
            0 | 1 => {
                let delta = pick(rng, &[1, -1, 5, 700, -3_000, 100_000]);
                What::StatAdd(a, rng.random_range(0..4), delta)
            }
            _ => What::StatRead(a, pick(rng, &[0, 0, 1, 2, 100])),
        },
        93..95 if swarm.kmem && rng.random_bool(0.15) => {
            What::Tiers(rng.random_range(10..80), rng.random())
        }
        93..95 if swarm.kmem => match rng.random_range(0..11) {
            10 => What::KmemPack(a, rng.random_bool(0.3)),
            9 => What::KmemMigrate(
                a,
                rng.random_range(0..5),
                rng.random_range(0..3),
                pick(rng, &SIZES),
            ),
            0..=2 => {
                // Beyond what was charged, as far as anything may be forced.
                let spots = if swarm.forced { 6 } else { 5 };
                What::Kmem(a, pick(rng, &SIZES), rng.random_range(0..spots))
            }
            7 => What::KmemMerge(a, b),
            8 => What::KmemRelocate(a, rng.random_range(0..5), pick(rng, &SIZES)),
            3 => What::KmemMove(
                a,
                rng.random_range(0..5),
                rng.random_range(0..5),
                pick(rng, &SIZES),
            ),
            4 if rng.random() => What::KmemShrinkTwo(a, rng.random_range(0..5), pick(rng, &SIZES)),
            4 => What::KmemShrink(a, rng.random_range(0..5), pick(rng, &SIZES)),
            5 => What::KmemTransfer(a, b),
            _ => What::KmemDrop(a),
        },
        95..97 if swarm.idle => match rng.random_range(0..4) {
            0 => What::Drain(a),
            1 => What::Settle,
            2 => What::Idle(rng.random_range(1..6)),
            _ => What::OwnCredit,
        },
        97 if swarm.ends && rng.random_bool(0.5) => What::End,
        97 if rng.random_bool(0.4) => What::Scopes(a, rng.random_range(1..12), rng.random()),
        97 if rng.random_bool(0.3) => What::Unowned(a, b, pick(rng, &[1, 300, 20_000])),
        98 if rng.random_bool(0.2) => What::Incidents(pick(rng, &[0, 1, 3, 8])),
        98 => What::Look,
        99 if swarm.faults => What::CreateDenied(a, b, rng.random_range(0..8)),
        99 if swarm.ends && rng.random_bool(0.05) => What::DropRuntime,
        100 if swarm.limits && swarm.tree => What::Share(a, pick(rng, &[0, 1, 3, 100, u32::MAX])),
        101 if swarm.vectors && rng.random() => {
            What::Cover(a, rng.random_range(1..48), rng.random())
        }
        101 if swarm.tree => What::Apply(a, rng.random_range(0..12), size(rng), rng.random()),
        89..91 => What::Checkpoint(a),
        102 if swarm.victims => What::OomBy(a, pick(rng, &[0, 1, 2, 3, 4, 5, 5])),
        102 if swarm.vectors => What::Cover(a, rng.random_range(1..48), rng.random()),
        103 if swarm.stats => match rng.random_range(0..4) {
            0 | 1 => What::Peak(a),
            2 => What::PeakReset(a),
            _ => What::PeakDrop(a),
        },
        104 if swarm.listeners => {
            let event = pick(rng, &[1, 2, 2, 3, 3, 6, 7, 8, 9]);
            What::Await(a % 4, event)
        }
        104 if swarm.marks => What::BelowHigh(a),
        105 if rng.random_bool(0.3) => What::Counters(rng.random_range(1..100), rng.random()),
        105 if rng.random_bool(0.2) => What::Foreign(a),
        105 => What::Specs(rng.random_range(10..60), rng.random()),
        107 if rng.random_bool(0.25) => What::Runtimes(rng.random()),
        107 if rng.random() => What::Weighed(rng.random_range(1..16), rng.random()),
        106 if swarm.tree && rng.random() => What::GetOrCreate(a, b),
        106 => What::ScopeOf(a),
        107 if swarm.forced => What::Gauge(a, size(rng)),
        _ => return None,
    };
    Some(made)
}

fn nature(rng: &mut Xoshiro256PlusPlus) -> Nature {
    let all = [
        Nature::Honest,
        Nature::Honest,
        Nature::Honest,
        Nature::Half,
        Nature::Stubborn,
        Nature::Greedy,
        Nature::Refills,
        Nature::Boasts,
        Nature::PanicsAtOnce,
        Nature::PanicsLate,
        Nature::Busy,
        Nature::Quits,
        Nature::Promises,
        Nature::Forgets,
        Nature::Keeps,
        Nature::Modest,
        Nature::EstimatesNothing,
        Nature::EstimatesAll,
        Nature::PanicsInEstimate,
    ];
    pick(rng, &all)
}
