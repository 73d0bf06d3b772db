//! Which group a consumer charges: the pool's own, one for what can spill and one for what cannot,
//! or one for each kind of operator.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use datafusion_execution::memory_pool::MemoryConsumer;
use memcg::errors::CreateError;
use memcg::{
    Bytes, ChargeError, Group, GroupName, GroupScope, Limits, OnFull, ReclaimPriority, Registration,
};

use crate::config::PoolConfig;
use crate::consumer::{Kind, Part, SORTER, is_as_it_says};
use crate::demand::Demand;
use crate::sorts::Sorts;

/// A group that consumers charge.
#[derive(Debug)]
pub(crate) struct Account {
    /// The consumers' name without a partition, where operators have a group each.
    operator: String,
    /// The group's reclaimer asks these consumers to spill.
    is_asked: bool,
    pub(crate) group: Group,
    pub(crate) demand: Option<Arc<Demand>>,
    // Dropped in this order: the group goes offline without a reclaimer.
    _reclaimer: Option<Registration>,
    _scope: Option<GroupScope>,
}

impl Account {
    pub(crate) fn plain(group: Group) -> Account {
        Account {
            operator: String::new(),
            is_asked: false,
            group,
            demand: None,
            _reclaimer: None,
            _scope: None,
        }
    }

    /// True if the account is that of the operator of a consumer with this name.
    #[inline]
    fn is_of(&self, name: &str) -> bool {
        name.strip_prefix(&*self.operator)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
    }

    /// Charges where the bytes fit at once, else does nothing.
    #[inline]
    pub(crate) fn charge_if_room(&self, bytes: u64) -> bool {
        self.group
            .raw()
            .charge_with(Bytes(bytes), OnFull::IfRoom)
            .is_ok()
    }

    /// Charges, and never waits.
    #[inline]
    pub(crate) fn try_charge_now(&self, bytes: u64) -> Result<(), ChargeError> {
        self.group.raw().charge_with(Bytes(bytes), OnFull::Now)
    }

    /// The same. Where it does not fit, others begin to give.
    #[inline]
    pub(crate) fn try_charge_or_start(&self, bytes: u64) -> Result<(), ChargeError> {
        self.group.raw().charge_with(Bytes(bytes), OnFull::Start)
    }

    #[inline]
    pub(crate) fn charge(&self, bytes: u64) {
        self.group.raw().force_charge(Bytes(bytes));
    }

    #[inline]
    pub(crate) fn uncharge(&self, bytes: u64) {
        self.group.raw().uncharge(Bytes(bytes));
    }

    /// The sorts of the account, and which part of one the consumer is.
    pub(crate) fn sorts(&self, kind: Kind) -> Option<(&Sorts, Part)> {
        self.demand
            .as_ref()
            .and_then(|demand| kind.part().map(|part| (&demand.sorts, part)))
    }

    /// True if growths and returns of such a consumer are no more than that: none is asked to
    /// spill, and no sort spills.
    #[inline]
    pub(crate) fn is_plain(&self, kind: Kind) -> bool {
        self.demand.as_ref().is_none_or(|demand| {
            !demand.is_open() && kind.part().is_none_or(|part| demand.sorts.is_plain(part))
        })
    }

    /// A group below `parent`. Where another pool of the group has taken the name, it has none.
    fn below(parent: &Group, operator: &str, is_asked: bool) -> Result<Account, CreateError> {
        let taken = |error| match error {
            CreateError::Taken { .. } | CreateError::Name { .. } => {
                parent.scope(GroupName::Unnamed, Limits::new())
            }
            other => Err(other),
        };
        let scope = parent.scope(operator, Limits::new()).or_else(taken)?;
        let demand = is_asked.then(|| Demand::new(scope.clone()));
        let reclaimer = demand
            .clone()
            .map(|demand| scope.register_reclaimer(demand, ReclaimPriority::NORMAL));
        let plain = Account::plain(scope.clone());
        let operator = operator.to_string();
        Ok(Account {
            operator,
            is_asked,
            demand,
            _reclaimer: reclaimer,
            _scope: Some(scope),
            ..plain
        })
    }
}

#[derive(Debug)]
pub(crate) enum Accounts {
    One(Account),
    BySpill {
        spillable: Account,
        unspillable: Account,
    },
    ByOperator {
        parent: Group,
        asks: bool,
        first: OnceLock<Box<Operator>>,
    },
}

/// The groups that consumers charge, for the common growth and return.
#[derive(Debug)]
pub(crate) enum Quick {
    /// The whole name decides.
    None,
    One(Group),
    BySpill {
        spillable: Group,
        unspillable: Group,
        demand: Arc<Demand>,
    },
}

impl Quick {
    /// The group that the consumer charges, where that is all there is to do.
    #[inline]
    pub(crate) fn of(&self, consumer: &MemoryConsumer) -> Option<&Group> {
        match self {
            Quick::One(group) => Some(group),
            Quick::BySpill {
                spillable,
                unspillable,
                demand,
            } => {
                let is_quick =
                    !demand.is_open() && demand.sorts.are_quiet() && is_as_it_says(consumer);
                let account = if consumer.can_spill() {
                    spillable
                } else {
                    unspillable
                };
                is_quick.then_some(account)
            }
            Quick::None => None,
        }
    }
}

/// Children of an operator in the tree: one for each value of four bits of a hash.
const FAN: usize = 16;

/// The account of a kind of operator, in a tree that only grows: it is read without a lock. Four
/// bits of the name's hash say where the way goes on.
#[derive(Debug)]
pub(crate) struct Operator {
    account: Account,
    next: [OnceLock<Box<Operator>>; FAN],
}

impl Accounts {
    pub(crate) fn new(group: &Group, config: &PoolConfig) -> Result<Accounts, CreateError> {
        Ok(if config.by_operator {
            Accounts::ByOperator {
                parent: group.clone(),
                asks: config.spill_on_demand,
                first: OnceLock::new(),
            }
        } else if config.spill_on_demand {
            let spillable = Account::below(group, "spillable", true)?;
            Accounts::BySpill {
                spillable,
                unspillable: Account::below(group, "unspillable", false)?,
            }
        } else {
            Accounts::One(Account::plain(group.clone()))
        })
    }

    /// Part of the accounts that needs no look at the whole name of a consumer.
    pub(crate) fn quick(&self) -> Quick {
        match self {
            Accounts::One(account) => Quick::One(account.group.clone()),
            Accounts::BySpill {
                spillable,
                unspillable,
            } => match &spillable.demand {
                Some(demand) => Quick::BySpill {
                    spillable: spillable.group.clone(),
                    unspillable: unspillable.group.clone(),
                    demand: Arc::clone(demand),
                },
                None => Quick::None,
            },
            Accounts::ByOperator { .. } => Quick::None,
        }
    }

    /// Uncharges up to `bytes` of what sorts of an attempt keep. False: they keep nothing.
    /// `is_needed`: else an operator would fail.
    #[cold]
    pub(crate) fn take_kept(&self, bytes: u64, is_needed: bool, attempt: Option<u64>) -> bool {
        let of = |account: &Account| {
            let taken = account.demand.as_ref().map_or(0, |demand| {
                demand.sorts.take_kept(bytes, is_needed, attempt)
            });
            account.uncharge(taken);
            taken > 0
        };
        match self {
            Accounts::One(account) => of(account),
            Accounts::BySpill {
                spillable,
                unspillable: _,
            } => of(spillable),
            Accounts::ByOperator { first, .. } => {
                let sorter = find_operator(SORTER, true, first);
                sorter.is_some_and(of)
            }
        }
    }

    /// The account of a consumer: the same one for each call with it.
    #[inline]
    pub(crate) fn of(&self, consumer: &MemoryConsumer, kind: Kind) -> &Account {
        match self {
            Accounts::One(account) => account,
            Accounts::BySpill {
                spillable,
                unspillable,
            } => {
                if kind.is_among_spillable(consumer) {
                    spillable
                } else {
                    unspillable
                }
            }
            Accounts::ByOperator {
                parent,
                asks,
                first,
            } => of_operator(consumer, kind, parent, *asks, first),
        }
    }
}

/// The account of the consumer's operator, which is made for the first consumer of it.
#[inline(never)]
fn of_operator<'a>(
    consumer: &MemoryConsumer,
    kind: Kind,
    parent: &Group,
    asks: bool,
    first: &'a OnceLock<Box<Operator>>,
) -> &'a Account {
    let is_asked = asks && kind.is_among_spillable(consumer);
    // A sort that is asked to spill has one account with its merge.
    let name = if asks && kind.part().is_some() {
        SORTER
    } else {
        consumer.name()
    };
    let mut place = first;
    let mut hash = None;
    loop {
        let operator = place.get_or_init(|| Box::new(Operator::new(name, parent, is_asked)));
        if operator.account.is_asked == is_asked && operator.account.is_of(name) {
            return &operator.account;
        }
        let left = hash.unwrap_or_else(|| hash_of(name));
        place = &operator.next[left % FAN];
        hash = Some(left / FAN);
    }
}

/// The account of an operator that has one.
fn find_operator<'a>(
    name: &str,
    is_asked: bool,
    first: &'a OnceLock<Box<Operator>>,
) -> Option<&'a Account> {
    let mut place = first;
    let mut left = hash_of(name);
    loop {
        let operator = place.get()?;
        if operator.account.is_asked == is_asked && operator.account.is_of(name) {
            return Some(&operator.account);
        }
        place = &operator.next[left % FAN];
        left /= FAN;
    }
}

/// The name without the partition.
fn operator_of(name: &str) -> &str {
    name.split('[').next().unwrap_or_default()
}

fn hash_of(name: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    operator_of(name).hash(&mut hasher);
    hasher.finish() as usize
}

impl Operator {
    /// Without a group of its own, because there are too many or the parent is offline, it charges
    /// the parent.
    fn new(name: &str, parent: &Group, is_asked: bool) -> Operator {
        let operator = operator_of(name);
        let account = Account::below(parent, operator, is_asked).unwrap_or_else(|_| Account {
            operator: operator.to_string(),
            is_asked,
            ..Account::plain(parent.clone())
        });
        Operator {
            account,
            next: Default::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use memcg::Runtime;

    use super::*;

    /// The longest way to an operator.
    fn steps(place: &OnceLock<Box<Operator>>) -> usize {
        place.get().map_or(0, |operator| {
            1 + operator.next.iter().map(steps).max().unwrap_or(0)
        })
    }

    /// The tree finds any of many operators in a few steps, and the same one for each partition.
    #[test]
    fn an_operator_is_found_in_a_few_steps() {
        let runtime = Runtime::builder().build().unwrap();
        let accounts = Accounts::new(&runtime.root(), &PoolConfig::new().by_operator()).unwrap();
        let of = |operator: usize, partition: usize| {
            let consumer = MemoryConsumer::new(format!("Operator{operator}[{partition}]"));
            accounts.of(&consumer, Kind::of(&consumer))
        };
        for operator in 0..20_000 {
            assert_eq!(of(operator, 0).group.path(), format!("/Operator{operator}"));
        }
        assert!((0..20_000).all(|operator| std::ptr::eq(of(operator, 1), of(operator, 0))));
        let Accounts::ByOperator { first, .. } = &accounts else {
            panic!("{accounts:?}")
        };
        assert!((4..12).contains(&steps(first)), "{} steps", steps(first));
    }
}
