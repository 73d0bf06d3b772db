//! The accounts of a chunk's objects, where there are several nodes. The thread that moves an object's pages moves its
//! account, and does not have the object.
//!
//! Most accounts are a charge and its [`Shares`], made and ended in place under the chunk's lock. A thread takes an
//! account out if the work needs more than cells at hand, and does the work without the lock.

use super::small_account::{Shares, SmallAccount};
use crate::group::Charge;
use crate::kmem::account::Kmem;

/// An account that a thread has taken out, and the object that it belongs to.
pub(super) struct DetachedAccount {
    /// Boxed, because most records have none.
    pub(super) kmem: Box<Kmem>,
    pub(super) at: u32,
    pub(super) granules: u32,
    /// The chunk's generation that the account stands for.
    pub(super) generation: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RecordState {
    /// The number of the next vacant record, plus 1.
    Vacant(u32),
    /// The record has `charge` and `shares`.
    Small,
    Kmem,
    /// A thread has taken the account out, and works on it without the lock.
    Out,
    /// The same, and the object is gone: that thread ends the account.
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

#[derive(Default)]
pub(super) struct Records {
    records: Vec<Record>,
    /// The number of the first vacant record, plus 1; 0 for none.
    vacant: u32,
}

/// What is left of an account when its object goes. The caller drops it without the lock. It is written in place, so
/// that nothing of it is moved.
#[derive(Default)]
pub(super) struct EndedAccount {
    /// A charge that is accounted nowhere any more.
    pub(super) charge: Option<Charge>,
    /// Statistics that the thread must announce.
    pub(super) due: Option<Shares>,
    shared: Option<SmallAccount>,
    kmem: Option<Box<Kmem>>,
}

impl Records {
    /// Whether a number is free without an allocation.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.vacant > 0 || self.records.len() < self.records.capacity()
    }

    pub(super) fn with_room(room: usize) -> Records {
        Records { records: Vec::with_capacity(room), vacant: 0 }
    }

    pub(super) fn room(&self) -> usize {
        self.records.capacity()
    }

    /// Takes over memory for more records, which the caller has allocated without the lock. Returns the old memory.
    pub(super) fn grow(&mut self, mut larger: Records) -> Records {
        if larger.records.capacity() > self.records.capacity() {
            larger.records.append(&mut self.records);
            std::mem::swap(&mut larger.records, &mut self.records);
        }
        larger
    }

    /// Takes a free number. Allocates where there is no [room](Self::has_room).
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

    /// Accounts a charge in place, under a number of its own. `due`: what the thread must announce. Returns the charge
    /// where the thread does not have the cells.
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
        let Some(is_due) = SmallAccount::add(charge.header(), &record.shares, 1) else {
            self.vacate(number);
            return Err(charge);
        };
        record.charge = Some(charge);
        (record.at, record.granules, record.generation) = (at, granules, generation);
        record.state = RecordState::Small;
        if is_due {
            *due = Some(record.shares);
        }
        Ok(number)
    }

    /// Keeps an account under a new number. Allocates where there is no [room](Self::has_room).
    pub(super) fn keep(&mut self, account: DetachedAccount) -> u32 {
        let number = self.number();
        if let Some(record) = self.records.get_mut(number as usize) {
            record.put(account);
        }
        number
    }

    /// Ends the account of an object that goes. If a thread has taken it out, that thread ends it.
    #[inline(always)]
    pub(super) fn end(&mut self, number: u32, ended: &mut EndedAccount) {
        let Some(record) = self.records.get_mut(number as usize) else { return };
        match (record.state, record.charge.take()) {
            (RecordState::Small, Some(charge)) => match SmallAccount::add(charge.header(), &record.shares, -1) {
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

    /// Takes out the first account from `number` on that stands for an older generation, for the caller to
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

    /// Brings an account back. Returns it to the caller if the object has gone meanwhile.
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
        (self.at, self.granules, self.generation) = (account.at, account.granules, account.generation);
        self.kmem = Some(account.kmem);
        self.state = RecordState::Kmem;
    }
}

pub(super) struct TakenOut {
    pub(super) number: u32,
    shared: Option<SmallAccount>,
    kmem: Option<Box<Kmem>>,
    of: (u32, u32, u64),
}

impl TakenOut {
    /// Makes an account that can move. Allocates.
    pub(super) fn into_account(self) -> Option<DetachedAccount> {
        let (at, granules, generation) = self.of;
        let kmem = self.kmem.or_else(|| Some(Box::new(self.shared?.into_kmem())))?;
        Some(DetachedAccount { kmem, at, granules, generation })
    }
}
