//! The accounts of a chunk's objects. The thread that moves an object's pages moves its account,
//! and does not have the object. It takes the account out, and does the work without the lock.

use memcg::Group;
use memcg::kmem::{Kmem, PackedKmem};

/// Places of an object whose account is packed: those of two or three nodes, and of metadata.
pub(super) const PLACES: usize = 4;

/// An account. Most objects lie in a few places, and their accounts are made and end in place.
pub(super) enum Account {
    Packed(PackedKmem<PLACES>),
    Whole(Box<Kmem>),
}

impl Account {
    pub(super) fn of(kmem: Kmem) -> Account {
        kmem.pack().map_or_else(Account::Whole, Account::Packed)
    }

    pub(super) fn into_kmem(self) -> Kmem {
        match self {
            Account::Packed(packed) => packed.unpack(),
            Account::Whole(kmem) => *kmem,
        }
    }

    fn group(&self) -> Group {
        match self {
            Account::Packed(packed) => packed.group(),
            Account::Whole(kmem) => kmem.group(),
        }
    }
}

/// An account, and the object that it belongs to.
pub(super) struct ObjectAccount {
    pub(super) account: Account,
    pub(super) at: u32,
    pub(super) granules: u32,
    /// The chunk's generation that the account stands for.
    pub(super) generation: u64,
}

enum Record {
    /// The number of the next vacant record, plus 1.
    Vacant(u32),
    Kept(ObjectAccount),
    /// A thread has taken the account out, and works on it without the lock.
    Out(Group),
    /// The same, and the object is gone: that thread ends the account.
    Gone(Group),
}

#[derive(Default)]
pub(super) struct Records {
    records: Vec<Record>,
    /// The number of the first vacant record, plus 1; 0 for none.
    vacant: u32,
}

/// Values that a thread drops without the lock.
#[derive(Default)]
pub(super) struct LeftOver {
    pub(super) account: Option<ObjectAccount>,
    pub(super) _group: Option<Group>,
}

impl Records {
    /// True if a number is free without an allocation.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.vacant > 0 || self.records.len() < self.records.capacity()
    }

    pub(super) fn with_room(room: usize) -> Records {
        Records {
            records: Vec::with_capacity(room),
            vacant: 0,
        }
    }

    pub(super) fn room(&self) -> usize {
        self.records.capacity()
    }

    /// Takes over memory for more records, which the caller has allocated without the lock. Returns
    /// the old memory.
    pub(super) fn grow(&mut self, mut larger: Records) -> Records {
        if larger.records.capacity() > self.records.capacity() {
            larger.records.append(&mut self.records);
            std::mem::swap(&mut larger.records, &mut self.records);
        }
        larger
    }

    /// Keeps an account under a new number. Allocates where there is no [room](Self::has_room).
    #[inline]
    pub(super) fn keep(&mut self, account: ObjectAccount) -> u32 {
        if let Some(number) = self.vacant.checked_sub(1)
            && let Some(record) = self.records.get_mut(number as usize)
            && let Record::Vacant(next) = *record
        {
            self.vacant = next;
            // A vacant record has nothing to drop.
            std::mem::forget(std::mem::replace(record, Record::Kept(account)));
            return number;
        }
        self.records.push(Record::Kept(account));
        (self.records.len() - 1) as u32
    }

    fn vacate(&mut self, number: u32) -> Option<Record> {
        let record = self.records.get_mut(number as usize)?;
        let old = std::mem::replace(record, Record::Vacant(self.vacant));
        self.vacant = number + 1;
        Some(old)
    }

    /// Ends the account of an object that goes. If a thread has taken it out, that thread ends it.
    #[inline]
    pub(super) fn end(&mut self, number: u32, left: &mut LeftOver) {
        let Some(record) = self.records.get_mut(number as usize) else {
            return;
        };
        match std::mem::replace(record, Record::Vacant(self.vacant)) {
            Record::Kept(account) => {
                self.vacant = number + 1;
                // There was nothing before to drop.
                std::mem::forget(left.account.replace(account));
            }
            Record::Out(group) => *record = Record::Gone(group),
            other => *record = other,
        }
    }

    /// Takes out the first account from `number` on that stands for an older generation. Returns
    /// its number, too.
    pub(super) fn take_out(
        &mut self,
        number: u32,
        generation: u64,
    ) -> Option<(u32, ObjectAccount)> {
        for (number, record) in self.records.iter_mut().enumerate().skip(number as usize) {
            let Record::Kept(ObjectAccount {
                account,
                generation: of,
                ..
            }) = &*record
            else {
                continue;
            };
            if *of == generation {
                continue;
            }
            let out = Record::Out(account.group());
            if let Record::Kept(account) = std::mem::replace(record, out) {
                return Some((number as u32, account));
            }
        }
        None
    }

    /// Brings an account back. Returns it to the caller if the object has gone meanwhile.
    pub(super) fn bring_back(&mut self, number: u32, account: ObjectAccount) -> LeftOver {
        let Some(record) = self.records.get_mut(number as usize) else {
            return LeftOver {
                account: Some(account),
                _group: None,
            };
        };
        match record {
            Record::Out(_) => match std::mem::replace(record, Record::Kept(account)) {
                Record::Out(group) => LeftOver {
                    account: None,
                    _group: Some(group),
                },
                _ => LeftOver::default(),
            },
            Record::Gone(_) => match self.vacate(number) {
                Some(Record::Gone(group)) => LeftOver {
                    account: Some(account),
                    _group: Some(group),
                },
                _ => LeftOver {
                    account: Some(account),
                    _group: None,
                },
            },
            Record::Vacant(_) | Record::Kept(_) => LeftOver {
                account: Some(account),
                _group: None,
            },
        }
    }

    /// The group that an account charges: a handle of its own.
    pub(super) fn group(&self, number: usize) -> Option<Group> {
        match self.records.get(number)? {
            Record::Kept(of) => Some(of.account.group()),
            Record::Out(group) | Record::Gone(group) => Some(group.clone()),
            Record::Vacant(_) => None,
        }
    }
}
