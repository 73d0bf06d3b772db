//! The accounts of a chunk's objects. Where there are several nodes, the thread that moves an object's
//! pages moves its account, and does not have the object: so the chunk keeps the accounts. That thread
//! takes the account out, and does the work without the lock. With one node nothing moves, and the
//! object itself has its account: it needs no record, and is made and ended in a few words.

use memcg::kmem::{Kmem, NodeId, PackedKmem, Placement, Precharge};
use memcg::{Bytes, Group, StatKey};

/// Places of an object whose account is packed: those of two or three nodes, and of metadata.
pub(super) const PLACES: usize = 4;

/// An account. Most objects lie in a few places, and their accounts are made and end in place.
pub(super) enum Account<const NODES: usize = PLACES> {
    Packed(PackedKmem<NODES>),
    Whole(Box<Kmem>),
}

impl Account<1> {
    /// Accounts a precharge whole to one node.
    #[inline]
    pub(super) fn on(node: NodeId, precharge: Precharge) -> Account<1> {
        let all = Bytes(precharge.bytes());
        match precharge.try_account_as(StatKey::PERCPU, &[(Some(node), all)]) {
            Ok(packed) => Account::Packed(packed),
            Err(precharge) => Account::on_slow(node, precharge),
        }
    }

    /// Makes an account that takes more than additions to what the thread has.
    #[cold]
    fn on_slow(node: NodeId, precharge: Precharge) -> Account<1> {
        let placement = Placement::on(node, Bytes(precharge.bytes()));
        Account::of(precharge.account_as(StatKey::PERCPU, &placement))
    }
}

impl<const NODES: usize> Account<NODES> {
    pub(super) fn of(kmem: Kmem) -> Account<NODES> {
        kmem.pack().map_or_else(Account::Whole, Account::Packed)
    }

    pub(super) fn into_kmem(self) -> Kmem {
        match self {
            Account::Packed(packed) => packed.unpack(),
            Account::Whole(kmem) => *kmem,
        }
    }

    pub(super) fn group(&self) -> Group {
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
    Out,
    /// The same, and the object is gone: that thread ends the account.
    Gone,
}

#[derive(Default)]
pub(super) struct Records {
    records: Vec<Record>,
    /// The number of the first vacant record, plus 1; 0 for none.
    vacant: u32,
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

    /// Takes away the account of an object that goes, for the caller to end without the lock. If a
    /// thread has taken it out, that thread ends it.
    #[inline]
    pub(super) fn take(&mut self, number: u32) -> Option<Account> {
        let record = self.records.get_mut(number as usize)?;
        match std::mem::replace(record, Record::Vacant(self.vacant)) {
            Record::Kept(of) => {
                self.vacant = number + 1;
                Some(of.account)
            }
            other => {
                *record = match other {
                    Record::Out => Record::Gone,
                    other => other,
                };
                None
            }
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
            if !matches!(record, Record::Kept(of) if of.generation != generation) {
                continue;
            }
            if let Record::Kept(account) = std::mem::replace(record, Record::Out) {
                return Some((number as u32, account));
            }
        }
        None
    }

    /// Brings an account back. Returns it to the caller if the object has gone meanwhile.
    pub(super) fn bring_back(
        &mut self,
        number: u32,
        account: ObjectAccount,
    ) -> Option<ObjectAccount> {
        match self.records.get_mut(number as usize) {
            Some(record @ Record::Out) => {
                *record = Record::Kept(account);
                None
            }
            Some(record @ Record::Gone) => {
                *record = Record::Vacant(self.vacant);
                self.vacant = number + 1;
                Some(account)
            }
            _ => Some(account),
        }
    }
}
