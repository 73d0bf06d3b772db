//! The accounts of a chunk's objects, where there are several nodes: who moves an object's pages moves its account, and
//! does not have the object.

use crate::kmem::Kmem;
use crate::kmem::at_hand::Shared;

/// The account of an object, and which one that is.
pub(super) struct Account {
    pub(super) held: Held,
    pub(super) at: u32,
    pub(super) granules: u32,
    /// Of the chunk's nodes that it stands for.
    pub(super) generation: u64,
}

/// What an account is.
pub(super) enum Held {
    Shared(Shared),
    Kmem(Kmem),
}

enum Record {
    /// The next vacant one, plus 1.
    Vacant(u32),
    Kept(Account),
    /// Somebody moves it, without the lock.
    Out,
    /// The same, and the object is gone: whoever has it gives it up.
    Orphan,
}

/// Accounts by number.
#[derive(Default)]
pub(super) struct Records {
    records: Vec<Record>,
    /// The first vacant one, plus 1; 0 for none.
    vacant: u32,
}

impl Records {
    /// Takes a number for an account. Gives it back where there is no room: [`grow`](Self::grow) first.
    #[inline]
    #[expect(clippy::result_large_err, reason = "under a lock, where a box would allocate")]
    pub(super) fn keep(&mut self, account: Account) -> Result<u32, Account> {
        if let Some(number) = self.vacant.checked_sub(1)
            && let Some(record) = self.records.get_mut(number as usize)
            && let Record::Vacant(next) = *record
        {
            self.vacant = next;
            *record = Record::Kept(account);
            return Ok(number);
        }
        if self.records.len() == self.records.capacity() {
            return Err(account);
        }
        self.records.push(Record::Kept(account));
        Ok((self.records.len() - 1) as u32)
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.vacant > 0 || self.records.len() < self.records.capacity()
    }

    pub(super) fn room(&self) -> usize {
        self.records.capacity()
    }

    /// Room for more, which the caller has made where nobody waits. Returns what was there.
    pub(super) fn grow(&mut self, room: Room) -> Room {
        let Room(mut records) = room;
        if records.capacity() > self.records.capacity() {
            records.append(&mut self.records);
            std::mem::swap(&mut records, &mut self.records);
        }
        Room(records)
    }

    #[inline]
    fn vacate(&mut self, number: u32) {
        if let Some(record) = self.records.get_mut(number as usize) {
            *record = Record::Vacant(self.vacant);
            self.vacant = number + 1;
        }
    }

    /// The object goes. Its account, for the caller to give up; `None`: whoever has it will.
    #[inline]
    pub(super) fn end(&mut self, number: u32) -> Option<Account> {
        let record = self.records.get_mut(number as usize)?;
        match std::mem::replace(record, Record::Orphan) {
            Record::Kept(account) => {
                self.vacate(number);
                Some(account)
            }
            _ => None,
        }
    }

    /// The account with the lowest number from `number` on that stands for older nodes, with its number.
    pub(super) fn take_out(&mut self, number: u32, generation: u64) -> Option<(u32, Account)> {
        for (number, record) in self.records.iter_mut().enumerate().skip(number as usize) {
            if matches!(record, Record::Kept(account) if account.generation != generation)
                && let Record::Kept(account) = std::mem::replace(record, Record::Out)
            {
                return Some((number as u32, account));
            }
        }
        None
    }

    /// Brings it back; gives it back to the caller where the object has gone meanwhile.
    pub(super) fn bring_back(&mut self, number: u32, account: Account) -> Option<Account> {
        match self.records.get_mut(number as usize) {
            Some(record @ Record::Out) => {
                *record = Record::Kept(account);
                None
            }
            Some(Record::Orphan) => {
                self.vacate(number);
                Some(account)
            }
            _ => Some(account),
        }
    }
}

/// Memory for records.
pub(super) struct Room(Vec<Record>);

impl Room {
    pub(super) fn new(records: usize) -> Room {
        Room(Vec::with_capacity(records))
    }
}
