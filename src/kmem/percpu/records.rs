//! The accounts of a chunk's objects, where there are several nodes: who moves an object's pages moves its account, and
//! does not have the object.
//!
//! Most are a charge and its [`Shares`], made and ended in their place under the chunk's lock. What takes more than cells
//! that are at hand is done without it, on an account that is taken out.

use super::small_account::{Shares, SmallAccount};
use crate::group::Charge;
use crate::kmem::account::Kmem;

/// The account of an object that somebody has taken out, and which one that is.
pub(super) struct DetachedAccount {
    /// Boxed: the list is of those that need none.
    pub(super) kmem: Box<Kmem>,
    pub(super) at: u32,
    pub(super) granules: u32,
    /// Of the chunk's nodes that it stands for.
    pub(super) generation: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RecordState {
    /// The next vacant one, plus 1.
    Vacant(u32),
    /// `charge` and `shares`.
    Small,
    /// `kmem`.
    Kmem,
    /// Somebody has it out, without the lock.
    Out,
    /// The same, and the object is gone: whoever has it gives it up.
    Gone,
}

struct Record {
    charge: Option<Charge>,
    shares: Shares,
    kmem: Option<Box<Kmem>>,
    generation: u64,
    at: u32,
    granules: u32,
    state: RecordState,
}

/// Accounts by number.
#[derive(Default)]
pub(super) struct Records {
    records: Vec<Record>,
    /// The first vacant one, plus 1; 0 for none.
    vacant: u32,
}

/// What is left of an account when its object goes, to be dropped where nobody waits. Written where it lies: nothing of
/// this is moved.
#[derive(Default)]
pub(super) struct EndedAccount {
    /// It is accounted nowhere any more.
    pub(super) charge: Option<Charge>,
    /// Others must be told so.
    pub(super) due: Option<Shares>,
    shared: Option<SmallAccount>,
    kmem: Option<Box<Kmem>>,
}

impl Records {
    /// A number is free without an allocation.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.vacant > 0 || self.records.len() < self.records.capacity()
    }

    pub(super) fn room(&self) -> usize {
        self.records.capacity()
    }

    /// Room for more, which the caller has made where nobody waits. Returns what was there.
    pub(super) fn grow(&mut self, room: RecordMemory) -> RecordMemory {
        let RecordMemory(mut records) = room;
        if records.capacity() > self.records.capacity() {
            records.append(&mut self.records);
            std::mem::swap(&mut records, &mut self.records);
        }
        RecordMemory(records)
    }

    /// A free number; where there is no [room](Self::has_room) this allocates.
    #[inline(always)]
    fn number(&mut self) -> u32 {
        if let Some(number) = self.vacant.checked_sub(1)
            && let Some(RecordState::Vacant(next)) = self.records.get(number as usize).map(|record| record.state)
        {
            self.vacant = next;
            return number;
        }
        let state = RecordState::Vacant(0);
        let record =
            Record { charge: None, shares: Shares::new(), kmem: None, generation: 0, at: 0, granules: 0, state };
        self.records.push(record);
        (self.records.len() - 1) as u32
    }

    #[inline(always)]
    fn vacate(&mut self, number: u32) {
        if let Some(record) = self.records.get_mut(number as usize) {
            record.state = RecordState::Vacant(self.vacant);
            self.vacant = number + 1;
        }
    }

    /// Accounts a charge in its place, under a number of its own. `due`: others must be told. Back where cells are not at
    /// hand.
    #[inline(always)]
    pub(super) fn account(
        &mut self,
        charge: Charge,
        (at, granules, generation): (u32, u32, u64),
        share: impl FnOnce(&mut Shares),
        due: &mut Option<Shares>,
    ) -> Result<u32, Charge> {
        let number = self.number();
        let Some(record) = self.records.get_mut(number as usize) else { return Err(charge) };
        record.shares.clear();
        share(&mut record.shares);
        let Some(is_due) = SmallAccount::account(&charge, &record.shares) else {
            self.vacate(number);
            return Err(charge);
        };
        record.charge = Some(charge);
        record.generation = generation;
        record.at = at;
        record.granules = granules;
        record.state = RecordState::Small;
        if is_due {
            *due = Some(record.shares);
        }
        Ok(number)
    }

    /// Takes a number for an account. Where there is no [room](Self::has_room) it allocates.
    pub(super) fn keep(&mut self, account: DetachedAccount) -> u32 {
        let number = self.number();
        if let Some(record) = self.records.get_mut(number as usize) {
            record.put(account);
        }
        number
    }

    /// The object goes, and its account, as far as that is at hand. Where somebody has it out, he gives it up.
    #[inline(always)]
    pub(super) fn end(&mut self, number: u32, ended: &mut EndedAccount) {
        let Some(record) = self.records.get_mut(number as usize) else { return };
        match (record.state, record.charge.take()) {
            (RecordState::Small, Some(charge)) => match SmallAccount::unaccount(&charge, &record.shares) {
                Some(is_due) => {
                    ended.charge = Some(charge);
                    if is_due {
                        ended.due = Some(record.shares);
                    }
                }
                None => ended.shared = Some(SmallAccount { charge, shares: record.shares }),
            },
            (RecordState::Kmem, _) => ended.kmem = record.kmem.take(),
            _ => {
                record.state = RecordState::Gone;
                return;
            }
        }
        self.vacate(number);
    }

    /// The account with the lowest number from `number` on that stands for older nodes, for the caller to
    /// [move](TakenOut::into_account).
    pub(super) fn take_out(&mut self, number: u32, generation: u64) -> Option<TakenOut> {
        for (number, record) in self.records.iter_mut().enumerate().skip(number as usize) {
            let is_kept = matches!(record.state, RecordState::Small | RecordState::Kmem);
            if is_kept && record.generation != generation {
                record.state = RecordState::Out;
                return Some(TakenOut {
                    number: number as u32,
                    shared: record.charge.take().map(|charge| SmallAccount { charge, shares: record.shares }),
                    kmem: record.kmem.take(),
                    of: (record.at, record.granules, record.generation),
                });
            }
        }
        None
    }

    /// Brings it back; gives it back to the caller where the object has gone meanwhile.
    pub(super) fn bring_back(&mut self, number: u32, account: DetachedAccount) -> Option<DetachedAccount> {
        match self.records.get_mut(number as usize) {
            Some(record) if record.state == RecordState::Out => {
                record.put(account);
                None
            }
            Some(record) if record.state == RecordState::Gone => {
                self.vacate(number);
                Some(account)
            }
            _ => Some(account),
        }
    }
}

impl Record {
    fn put(&mut self, account: DetachedAccount) {
        let DetachedAccount { kmem, at, granules, generation } = account;
        (self.at, self.granules, self.generation) = (at, granules, generation);
        self.kmem = Some(kmem);
        self.state = RecordState::Kmem;
    }
}

/// An account that has been taken out, as it was.
pub(super) struct TakenOut {
    pub(super) number: u32,
    shared: Option<SmallAccount>,
    kmem: Option<Box<Kmem>>,
    of: (u32, u32, u64),
}

impl TakenOut {
    /// One that can be moved. Allocates.
    pub(super) fn into_account(self) -> Option<DetachedAccount> {
        let (at, granules, generation) = self.of;
        let kmem = self.kmem.or_else(|| Some(Box::new(self.shared?.into_kmem())))?;
        Some(DetachedAccount { kmem, at, granules, generation })
    }
}

/// Memory for records.
pub(super) struct RecordMemory(Vec<Record>);

impl RecordMemory {
    pub(super) fn new(records: usize) -> RecordMemory {
        RecordMemory(Vec::with_capacity(records))
    }
}
