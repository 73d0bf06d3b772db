//! Operations on what adapters hold: allocators, channels, requests, containers on nodes, the host's
//! files, the page of metrics.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, RngExt};

use super::{Kind, Size, Verb, What, pick, size};

/// What is done with an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// A global allocator, by its number, allocates so many bytes in that group. True: the allocator
    /// below it refuses.
    Allocate(u8, u8, u32, bool),
    /// An object gets another size, in that group.
    Reallocate(u8, u8, u32, bool),
    /// An object is freed.
    Free(u8),
    /// An allocator of that group allocates so many bytes.
    Block(u8, u32, bool),
    /// A block of such an allocator grows or shrinks.
    ResizeBlock(u8, u32, bool),
    /// It is freed.
    FreeBlock(u8),
    /// Memory that no allocator sees.
    External(u8, u32),
    /// It gets another size, in that group.
    ResizeExternal(u8, u8, u32),
    /// It ends.
    DropExternal(u8),
    /// A task of that group panics, and the program's hook keeps something of it.
    PanicHook(u8),
    /// In groups of their own objects and blocks come and go, as a seed says.
    Alone(u64),

    /// A channel of that group begins.
    Channel(u8),
    /// A message of so many bytes is sent, and waits.
    Send(u8, Size),
    /// The same, for so many milliseconds at most.
    SendTimeout(u8, Size, u16),
    /// A message is sent if it fits at once.
    TrySend(u8, Size),
    /// A message is sent that may be dropped; true: for later ones, else for earlier ones.
    SendLossy(u8, bool, Size),
    /// Room is charged, then a message is sent.
    Reserve(u8, Size),
    /// A message is sent by a sink, which is closed then; true: flushed before.
    SendBySink(u8, Size, bool),
    /// In a tree of their own sends and charges are delayed above a high, or wait at a max, as a
    /// seed says.
    Delayed(u64),
    /// In a tree of its own a channel has messages at once, as a seed says.
    Queued(u64),
    /// Room is charged for a message of so many bytes, with a sender, if it is there at once.
    Permit(u8, Size),
    /// Such room is used, for a message or for none, by a number.
    UsePermit(u8, u8),
    /// A handle that does not keep the channel open is made, or becomes its senders where they have gone.
    Weak(u8),
    /// Tasks of tokio run in groups of a tree of their own, as a seed says.
    Tasks(u64),
    /// A charge of any group is sent as a message.
    SendCharged(u8, u8),
    /// A send that waits is dropped.
    DropSend(u8, u8),
    /// A message is received, and a send that this has woken is dropped before it looks.
    DropWoken(u8),
    /// Many sends wait, and are dropped.
    BurstOfSends(u8),
    /// In a channel of its own many messages of that many bytes take the place of earlier ones.
    TurnsOfMessages(u16),
    /// A message is received.
    Receive(u8),
    /// A message is received, and keeps its charge.
    ReceiveCharged(u8),
    /// So many messages are received at once.
    ReceiveMany(u8, u8),
    /// The receiver takes no more.
    Close(u8),
    /// The receiver ends.
    DropReceiver(u8),
    /// The senders end.
    DropSenders(u8),
    /// A charge waits by tokio's clock.
    ChargeTimeout(u8, Size, u16),

    /// A request of that group begins, by the number of a form and the length of its body; without a
    /// length it is a stream.
    Request(u8, u8, Option<u32>),
    /// A frame of so many bytes comes for the body of a request.
    Comes(u8, u32),
    /// The body of a request ends; false: it fails.
    ComesNoMore(u8, bool),
    /// The handler reads a frame.
    Read(u8),
    /// The handler drops the body.
    DropBody(u8),
    /// The handler lets the admitted request go.
    LetGo(u8),
    /// The handler answers with frames of so many bytes; true: it says their length.
    Answer(u8, u8, u32, bool),
    /// The handler panics, or fails.
    FailHandler(u8, bool),
    /// The connection takes a frame of the answer.
    Take(u8),
    /// The connection has sent a frame.
    Sent(u8),
    /// The client goes away.
    Leave(u8),
    /// A connection of that group serves one request, by the number of a form, with so many bytes of a
    /// body and of an answer. It breaks in a way that a number says, at the call or turn of another.
    Serve(u8, u8, u32, u32, u8, u8),
    /// A connection of that group has several streams at once, as a seed says. It breaks as the one
    /// above does.
    Streams(u8, u8, u8, u8, u64),
    /// A client takes what it is sent, or leaves it, as a seed says.
    Paced(u64),
    /// Requests of a tree of their own go through several layers, as a seed says.
    Layered(u64),
    /// Bodies, requests and answers of a tree of their own are slow, as a seed says.
    Slow(u64),

    /// A vector in pages begins.
    Pages(u8, u16),
    /// So many items are pushed.
    PushPages(u8, u16),
    /// So many are popped.
    PopPages(u8, u16),
    /// So many are put behind the last at once, or none.
    ExtendPages(u8, u16),
    /// All but so many are dropped.
    CutPages(u8, u16),
    /// The vector gives back what it has not filled.
    ShrinkPages(u8),
    /// Its touched pages are looked up; true: all anew.
    SettlePages(u8, bool),
    /// The vector ends.
    DropPages(u8),
    /// A string of so many bytes is stored, on that node.
    Store(u8, u16, u8),
    /// It is removed.
    Remove(u8),
    /// Strings move together.
    Compact,
    /// Strings of that group come and go, and others in their place.
    TurnOver(u8),
    /// An object is put into the slab, on that node.
    Slab(u8, u8),
    /// It ends.
    DropSlab(u8),
    /// Memory of so many bytes for each processor.
    PerCpu(u8, u16),
    /// It ends.
    DropPerCpu(u8),
    /// Containers of that group have values whose own code panics, as a seed says.
    Values(u8, u64),
    /// Containers of a tree of their own have many pages, which move in part, as a seed says.
    Moves(u64),
    /// Pages have moved by so many nodes; true: containers look them up again.
    MovePages(u8, bool),

    /// A group's max follows the host, at so many percent.
    Follow(u8, u8),
    /// The host's limit becomes so many KiB.
    HostLimit(u16),
    /// The file of the limit has rubbish in it, or is gone.
    HostFault(bool),
    /// The memory of the process, as the host's files have it, is compared with a group.
    Reconcile(u8, u16),
    /// In a tree of its own a max follows such limits, while the thread that asks caches is busy.
    HostWhileBusy(u16),
    /// Control groups in each other have files as a seed says, which are read.
    HostLevels(u64),
    /// The files of a whole system are read, and memory is asked for by them, as a seed says.
    HostSystem(u64),
    /// In a tree of its own memory is asked for, by such files, which change.
    HostReclaims(u64),
    /// In a tree of its own a max makes room for what is not charged, while limits change.
    HostUncharged(u64),
    /// The max follows no more.
    Unfollow,

    /// The page of metrics is read, by the number of its form.
    Scrape(u8),
    /// A socket answers questions about a tree of its own, of clients as a seed says.
    Ask(u64),
    /// Events of a tree of its own are told in lines, and layers print figures onto its page, as a
    /// seed says.
    Lines(u64),
    /// The files of a group are read.
    Files(u8),
    /// A limit is written into a file of a group, by the number of its text.
    WriteFile(u8, u8, Size),
}

/// Adapters that a run has operations of.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdapterSwarm {
    allocators: bool,
    channels: bool,
    requests: bool,
    containers: bool,
    host: bool,
    metrics: bool,
    faults: bool,
}

impl AdapterSwarm {
    pub(super) fn of_containers() -> AdapterSwarm {
        AdapterSwarm {
            allocators: false,
            channels: false,
            requests: false,
            containers: true,
            host: false,
            metrics: false,
            faults: false,
        }
    }

    #[cfg(feature = "adapters")]
    pub(super) fn draw(rng: &mut Xoshiro256PlusPlus) -> AdapterSwarm {
        // Some runs have one adapter alone, so that two of a kind meet.
        let only = match rng.random_range(0..14_u8) {
            only @ 0..6 => Some(only),
            _ => None,
        };
        let mut half = || rng.random_bool(0.45);
        let swarm = AdapterSwarm {
            allocators: half(),
            channels: half(),
            requests: half(),
            containers: half(),
            // Each look waits for a thread.
            host: half() && half() && half(),
            metrics: half(),
            faults: half(),
        };
        let Some(only) = only else { return swarm };
        AdapterSwarm {
            allocators: only == 0,
            channels: only == 1 || only == 2,
            requests: only == 3,
            containers: only == 4,
            host: only == 5,
            metrics: false,
            ..swarm
        }
    }
}

const SIZES: [u32; 12] = [
    1, 8, 60, 100, 300, 1_000, 1_024, 1_025, 4_000, 9_000, 20_000, 70_000,
];

/// Messages have their number in front.
fn message(rng: &mut Xoshiro256PlusPlus) -> Size {
    match size(rng) {
        Size::Bytes(bytes) => Size::Bytes(bytes.max(8)),
        size => size,
    }
}

/// One operation, or none where the swarm has switched its adapter off.
pub(super) fn draw(rng: &mut Xoshiro256PlusPlus, swarm: AdapterSwarm) -> Option<Adapter> {
    // Few subjects of a kind, so that operations meet.
    let one = |rng: &mut Xoshiro256PlusPlus| rng.next_u32() as u8 % 8;
    let (a, b) = (one(rng), one(rng));
    // Most of what happens to channels, requests and vectors happens to the first of them.
    let near = a % 5 / 2;
    let refuses = swarm.faults && rng.random_bool(0.25);
    let bytes = pick(rng, &SIZES);
    let made = match rng.random_range(0..6) {
        0 if swarm.allocators => match rng.random_range(0..17) {
            14 => Adapter::PanicHook(a),
            15 | 16 => Adapter::Alone(rng.random()),
            0..=2 => Adapter::Allocate(a, rng.random_range(0..12), bytes, refuses),
            3 | 4 => Adapter::Reallocate(a, b, bytes, refuses),
            5 => Adapter::Free(a),
            // A block may have nothing.
            6 | 7 => Adapter::Block(a, pick(rng, &[bytes, bytes, bytes, 0]), refuses),
            8 | 9 => Adapter::ResizeBlock(a, pick(rng, &[bytes, bytes, bytes, 0]), refuses),
            10 => Adapter::FreeBlock(a),
            11 => Adapter::External(a, pick(rng, &[0, 1, 5_000, 30_000])),
            12 => Adapter::ResizeExternal(a, b, pick(rng, &[0, 1, 5_000, 30_000])),
            _ => Adapter::DropExternal(a),
        },
        1 if swarm.channels => match rng.random_range(0..32) {
            28 => Adapter::Permit(near, message(rng)),
            29 => Adapter::UsePermit(near, rng.random()),
            30 => Adapter::Weak(near),
            31 if rng.random_bool(0.3) => Adapter::Tasks(rng.random()),
            31 => return None,
            26 => Adapter::SendBySink(near, message(rng), rng.random()),
            27 if rng.random_bool(0.3) => Adapter::Delayed(rng.random()),
            27 => Adapter::Queued(rng.random()),
            0 | 1 => Adapter::Channel(a),
            2..=6 => Adapter::Send(near, message(rng)),
            7 => Adapter::SendTimeout(near, message(rng), pick(rng, &[0, 1, 20, 1_000])),
            8 | 9 => Adapter::TrySend(near, message(rng)),
            10..=13 => Adapter::SendLossy(near, rng.random_bool(0.3), message(rng)),
            14 => Adapter::Reserve(near, message(rng)),
            15 => Adapter::SendCharged(near, b),
            16 if rng.random_bool(0.3) => Adapter::BurstOfSends(near),
            16 if rng.random_bool(0.2) => Adapter::TurnsOfMessages(rng.random_range(8..800)),
            16 => Adapter::DropSend(near, b),
            17..=19 => Adapter::Receive(near),
            20 => Adapter::DropWoken(near),
            21 => Adapter::ReceiveCharged(near),
            22 => Adapter::ReceiveMany(near, pick(rng, &[0, 1, 3, 40])),
            23 => Adapter::ChargeTimeout(a, size(rng), pick(rng, &[0, 1, 20, 1_000])),
            24 if rng.random_bool(0.6) => Adapter::DropReceiver(near),
            24 => Adapter::Close(near),
            _ if rng.random_bool(0.5) => Adapter::DropSenders(near),
            _ => return None,
        },
        2 if swarm.requests => match rng.random_range(0..31) {
            30 => Adapter::Slow(rng.random()),
            27..=29 => Adapter::Layered(rng.random()),
            26 => {
                let (form, way) = (rng.random(), rng.random_range(0..12));
                let at = pick(rng, &[0, 1, 2, 3, 4, 5, 6, 8, 12, 20, 40]);
                Adapter::Streams(a, form, way, at, rng.random())
            }
            25 if rng.random_bool(0.4) => Adapter::Paced(rng.random()),
            25 => return None,
            24 => {
                let bytes =
                    |rng: &mut Xoshiro256PlusPlus| pick(rng, &[0, 100, 5_000, 20_000, 45_000]);
                let (body, answer) = (bytes(rng), bytes(rng));
                // Most calls come before the tenth.
                let at = pick(rng, &[0, 1, 2, 3, 4, 5, 6, 8, 12, 20]);
                Adapter::Serve(a, rng.random(), body, answer, rng.random_range(0..12), at)
            }
            0..=4 => {
                let lengths = [None, None, Some(0), Some(100), Some(5_000), Some(20_000)];
                Adapter::Request(a, rng.random_range(0..32), pick(rng, &lengths))
            }
            5..=8 => Adapter::Comes(near, bytes),
            9 => Adapter::ComesNoMore(near, !refuses),
            10..=13 => Adapter::Read(near),
            14 => Adapter::DropBody(near),
            15 => Adapter::LetGo(near),
            16..=18 => Adapter::Answer(near, rng.random_range(0..4), bytes, rng.random()),
            19 if refuses => Adapter::FailHandler(near, rng.random()),
            19..=21 => Adapter::Take(near),
            22 => Adapter::Sent(near),
            _ => Adapter::Leave(near),
        },
        3 if swarm.containers => match rng.random_range(0..24) {
            23 if rng.random_bool(0.6) => Adapter::Moves(rng.random()),
            23 => return None,
            22 => Adapter::Values(a, rng.random()),
            20 => Adapter::ExtendPages(near, pick(rng, &[0, 3, 600, 2_000])),
            21 => Adapter::CutPages(near, pick(rng, &[0, 1, 500, 1_100])),
            0 | 1 => Adapter::Pages(a, pick(rng, &[0, 0, 1, 600, 2_000])),
            2..=4 => Adapter::PushPages(near, pick(rng, &[1, 3, 400, 600, 2_000])),
            5 | 6 => Adapter::PopPages(near, pick(rng, &[1, 3, 400, 600, 2_000])),
            7 => Adapter::ShrinkPages(near),
            8 | 9 => Adapter::SettlePages(near, rng.random_bool(0.4)),
            10 => Adapter::DropPages(near),
            11 | 12 => Adapter::Store(a, pick(rng, &[0, 1, 30, 500, 2_000, 4_000]), b),
            13 => Adapter::Remove(a),
            14 if rng.random() => Adapter::TurnOver(a),
            14 => Adapter::Compact,
            15 => Adapter::Slab(a, b),
            16 => Adapter::DropSlab(a),
            17 => Adapter::PerCpu(a, pick(rng, &[1, 8, 100, 3_000])),
            18 => Adapter::DropPerCpu(a),
            _ => Adapter::MovePages(rng.random_range(0..4), rng.random_bool(0.7)),
        },
        4 if swarm.host => match rng.random_range(0..14) {
            13 => Adapter::HostSystem(rng.random()),
            10 => Adapter::HostLevels(rng.random()),
            11 if rng.random_bool(0.4) => Adapter::HostReclaims(rng.random()),
            12 if rng.random_bool(0.4) => Adapter::HostUncharged(rng.random()),
            11 | 12 => return None,
            0 | 1 => Adapter::Follow(a, pick(rng, &[1, 50, 100])),
            2..=4 => Adapter::HostLimit(pick(rng, &[4, 40, 100, 2_000, 60_000])),
            5 | 6 if swarm.faults => Adapter::HostFault(rng.random()),
            7 | 8 => Adapter::Reconcile(a, rng.random_range(0..500)),
            9 if rng.random() => Adapter::HostWhileBusy(rng.random()),
            9 => Adapter::Unfollow,
            _ => return None,
        },
        5 if swarm.metrics => match rng.random_range(0..8) {
            7 if rng.random_bool(0.3) => Adapter::Lines(rng.random()),
            7 => return None,
            6 if rng.random_bool(0.2) => Adapter::Ask(rng.random()),
            6 => return None,
            0..=2 => Adapter::Scrape(rng.random_range(0..8)),
            3 => Adapter::Files(a),
            _ => Adapter::WriteFile(a, rng.random_range(0..9), size(rng)),
        },
        _ => return None,
    };
    Some(made)
}

/// What comes next, now and then: steps that show something together.
pub(super) fn follow(rng: &mut Xoshiro256PlusPlus, what: &What) -> Vec<What> {
    let What::With(adapter) = what else {
        return Vec::new();
    };
    match *adapter {
        // A message for which several earlier ones go.
        Adapter::SendLossy(channel, false, _) if rng.random_bool(0.1) => {
            let sizes = [80, 80, 80].map(Size::Bytes).into_iter();
            let sizes = sizes.chain([Size::Less(0), Size::Bytes(pick(rng, &[200, 1_000]))]);
            let sends = sizes.map(|size| Adapter::SendLossy(channel, false, size));
            sends.map(What::With).collect()
        }
        // Sends of several sizes wait, one after the other, and then a max falls or messages go.
        Adapter::Send(channel, _) if rng.random_bool(0.2) => {
            let send = |bytes| What::With(Adapter::Send(channel, Size::Bytes(bytes)));
            let mut story = vec![
                What::Set(0, Kind::Max, Size::Above(9_000)),
                send(3_000),
                send(3_000),
                send(2_000),
            ];
            let sizes = [200, 200, 1_000, 2_500, 4_000, 8_000];
            story.extend((0..rng.random_range(2..5)).map(|_| send(pick(rng, &sizes))));
            for _ in 0..rng.random_range(1..4) {
                story.push(match rng.random_range(0..6) {
                    5 => What::With(Adapter::DropWoken(channel)),
                    0 | 1 => What::Set(0, Kind::Max, Size::Bytes(pick(rng, &[500, 3_000, 6_000]))),
                    2 => What::With(Adapter::DropSend(channel, rng.random())),
                    _ => What::With(Adapter::Receive(channel)),
                });
            }
            story
        }
        // A channel that was empty once is full, near a limit, and ends.
        Adapter::Channel(_) if rng.random_bool(0.2) => {
            let channel = rng.random_range(0..3);
            let with = |adapter| What::With(adapter);
            let send = || with(Adapter::Send(channel, Size::Bytes(3_000)));
            vec![
                with(Adapter::Receive(channel)),
                What::Set(0, Kind::Max, Size::Above(pick(rng, &[3_500, 6_500]))),
                send(),
                send(),
                with(Adapter::Receive(channel)),
                with(Adapter::Receive(channel)),
                with(Adapter::DropReceiver(channel)),
                What::Unset(0, Kind::Max),
            ]
        }
        Adapter::Channel(_) if rng.random_bool(0.3) => {
            let channel = rng.random_range(0..3);
            vec![
                What::With(Adapter::Send(channel, Size::Bytes(3_000))),
                What::Set(0, Kind::Max, Size::Above(1_000)),
                What::With(Adapter::BurstOfSends(channel)),
                What::Unset(0, Kind::Max),
            ]
        }
        // A frame that waits, of a group that goes offline, or whose max falls below it.
        Adapter::Request(group, _, None) if rng.random_bool(0.2) => {
            let request = rng.random_range(0..3);
            let of = |adapter: fn(u8) -> Adapter| What::With(adapter(request));
            let ends = match rng.random_range(0..3) {
                0 => What::OfflineTree(group),
                1 => What::Set(0, Kind::Max, Size::Bytes(100)),
                _ => What::Unset(0, Kind::Max),
            };
            vec![
                What::Set(0, Kind::Max, Size::Above(1_000)),
                What::With(Adapter::Comes(request, 4_000)),
                of(Adapter::Read),
                ends,
                What::With(Adapter::Answer(request, 1, 100, true)),
                of(Adapter::Take),
            ]
        }
        // Several wait to promise something, one goes, and there is room for some.
        Adapter::Request(group, form, Some(20_000)) if rng.random_bool(0.3) => {
            let request = |form| What::With(Adapter::Request(group, form, Some(20_000)));
            // They wait, and differ in what they take themselves.
            let mut story = vec![
                What::Set(0, Kind::Max, Size::Above(30_000)),
                request(16 | form),
            ];
            story
                .extend((0..rng.random_range(2..4)).map(|_| request(pick(rng, &[16, 20, 24, 28]))));
            story.push(What::With(Adapter::Leave(rng.random_range(0..4))));
            let room = pick(rng, &[23_000, 26_000, 45_000, 60_000]);
            story.push(What::Set(0, Kind::Max, Size::Above(room)));
            story
        }
        // A frame that finds no room.
        Adapter::Answer(request, ..) if rng.random_bool(0.2) => vec![
            What::Charge(0, Verb::Plain, Size::Less(16)),
            What::With(Adapter::Take(request)),
        ],
        // A vector that has given pages back has room next that it has not touched.
        Adapter::PushPages(vector, _) if rng.random_bool(0.1) => {
            let with = |adapter| What::With(adapter);
            vec![
                with(Adapter::PushPages(vector, 2_000)),
                with(Adapter::PopPages(vector, 1_100)),
                with(Adapter::ShrinkPages(vector)),
                with(Adapter::PushPages(vector, 600)),
                with(Adapter::SettlePages(vector, false)),
            ]
        }
        // Memory of processors on more than one page, accounted by a thread that has done so before.
        Adapter::PerCpu(group, bytes) if bytes > 1_000 && rng.random_bool(0.5) => {
            let more = || What::With(Adapter::PerCpu(group, bytes));
            vec![more(), more(), more(), What::Look]
        }
        // Or others.
        Adapter::ShrinkPages(vector) if rng.random_bool(0.3) => vec![
            What::With(Adapter::PushPages(vector, 2_000)),
            What::With(Adapter::SettlePages(vector, false)),
        ],
        _ => Vec::new(),
    }
}
