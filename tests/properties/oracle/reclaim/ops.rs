//! Operations on groups under pressure.

pub(crate) use crate::oracle::record::THREADS;
use crate::oracle::record::{self, pick};

/// Batches of the stock.
pub(crate) const BATCHES: [u64; 5] = [0, 0, 64, 4_096, 262_144];

/// Sizes that come up, round what a walk asks for at least.
pub(crate) const SIZES: [u64; 16] = [
    0,
    1,
    100,
    4_095,
    4_096,
    16_383,
    16_384,
    16_385,
    50_000,
    65_536,
    100_000,
    262_144,
    500_000,
    1 << 20,
    3 << 20,
    u64::MAX,
];

/// The settings of the runtime.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) batch: u64,
    pub(crate) adaptive: bool,
    pub(crate) fence: bool,
    pub(crate) recursive: bool,
    /// Reclaim has all the time that it needs, and no reclaimer keeps an answer: the run judges
    /// refusals.
    pub(crate) patient: bool,
    pub(crate) max: u64,
}

/// The character of a reclaimer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Character {
    Honest,
    /// Takes a while.
    Slow,
    /// Frees nothing, and says so.
    Stubborn,
    /// Frees nothing, and says that it did.
    Boasts,
    /// Frees what it is asked for and says that it freed nothing.
    Modest,
    /// Frees half and says that it was all.
    Half,
    /// Frees all it has.
    Greedy,
    PanicsAtOnce,
    /// When it has freed half.
    PanicsLate,
    PanicsInEstimate,
    /// Says that there is nothing to be had of it.
    EstimatesNothing,
    /// Says that there is no end to what it has.
    EstimatesAll,
    /// Uses what it may of the library meanwhile.
    Busy,
    /// Ends its own registration.
    Quits,
    /// Answers afterwards, if at all.
    Later,
    /// Takes its time to answer and answers at once.
    LaterAtOnce,
}

impl Character {
    pub(crate) const ALL: [Character; 16] = [
        Character::Honest,
        Character::Slow,
        Character::Stubborn,
        Character::Boasts,
        Character::Modest,
        Character::Half,
        Character::Greedy,
        Character::PanicsAtOnce,
        Character::PanicsLate,
        Character::PanicsInEstimate,
        Character::EstimatesNothing,
        Character::EstimatesAll,
        Character::Busy,
        Character::Quits,
        Character::Later,
        Character::LaterAtOnce,
    ];

    /// It frees what it is asked for, and its estimate is what it has.
    pub(crate) fn is_honest(self) -> bool {
        matches!(
            self,
            Character::Honest | Character::Slow | Character::Busy | Character::Modest
        )
    }

    /// It claims more than it frees.
    pub(crate) fn boasts(self) -> bool {
        matches!(self, Character::Boasts | Character::Half)
    }
}

/// Which limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Max,
    Soft,
    Low,
    Min,
}

impl Setting {
    pub(crate) const ALL: [Setting; 4] = [Setting::Max, Setting::Soft, Setting::Low, Setting::Min];
}

pub(crate) type Op = record::Op<Action>;

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Create,
    Offline,
    OfflineTree,
    /// A reclaimer that is charged so much.
    Register {
        character: Character,
        priority: u8,
        bytes: u64,
    },
    /// One that exists takes more.
    Fill(u64),
    Unregister,
    /// It goes with all that it holds.
    DropActor,
    TryCharge(u64),
    /// By force.
    Charge(u64),
    DropCharge,
    Set(Setting, u64),
    /// So much above what is live.
    SetMaxAbove(u64),
    Reclaim(u64),
    /// The oldest answer that is due.
    Answer,
    /// It is thrown away.
    DropAnswer,
    Drain,
    /// The thread ends and another takes its place.
    Exit,
}

pub(crate) fn decode(bytes: &[u8]) -> (Setup, Vec<Op>) {
    record::decode(bytes, setup, action)
}

fn setup([batch, flags, max, _]: [u8; 4]) -> Setup {
    Setup {
        batch: pick(&BATCHES, batch),
        adaptive: flags & 1 != 0,
        fence: flags & 2 != 0,
        recursive: flags & 4 == 0,
        patient: flags & 8 == 0,
        max: pick(&[u64::MAX, 1 << 20, 4 << 20, 300_000], max),
    }
}

fn action([code, _, thread, size]: [u8; 4]) -> Action {
    let bytes = pick(&SIZES, size);
    match code % 40 {
        0..=4 => Action::Create,
        5 => Action::Offline,
        6 => Action::OfflineTree,
        7..=12 => Action::Register {
            character: if size < 96 {
                Character::Honest
            } else {
                pick(&Character::ALL, thread / 4)
            },
            priority: size / 16,
            bytes,
        },
        13 | 14 => Action::Fill(bytes),
        15 => Action::Unregister,
        16 => Action::DropActor,
        17..=21 => Action::TryCharge(bytes),
        22 => Action::Charge(bytes),
        23..=25 => Action::DropCharge,
        26..=30 => Action::Set(pick(&Setting::ALL, code % 40 - 26), bytes),
        31 | 32 => Action::SetMaxAbove(bytes),
        33..=35 => Action::Reclaim(bytes),
        36 => Action::Answer,
        37 => Action::DropAnswer,
        38 => Action::Drain,
        _ => Action::Exit,
    }
}
