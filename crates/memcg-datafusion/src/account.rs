//! Which group a consumer charges: the pool's own, one for what can spill and one for what cannot, or one for each
//! kind of operator.

use std::sync::{Arc, PoisonError, RwLock};

use datafusion_execution::memory_pool::MemoryConsumer;
use memcg::{Bytes, ChargeError, CreateError, Group, GroupName, GroupScope, Limits, Priority, RawCover, Registration};

use crate::config::PoolConfig;
use crate::covers::Scope;
use crate::demand::Demand;
use crate::sorts::{Part, SORTER, Sorts};

/// An exchange: it has a batch in its hands that it spills where it is refused, and gives nothing of what it holds.
const EXCHANGE: &str = "RepartitionExec";

/// An aggregate of sorted rows: DataFusion calls it spillable for the share that its fair pool then gives it, and it fails
/// where it is refused.
const BOUNDED: &str = "OrderedFinalAggregateStream";

/// Whether a refusal of this consumer makes it give memory back.
pub(crate) fn gives_back(consumer: &MemoryConsumer) -> bool {
    consumer.can_spill() && !is_exchange(consumer) && !consumer.name().starts_with(BOUNDED)
}

/// Whether a pool that spills on demand charges the consumer beside its spillable ones: a sort's merge takes over what its
/// sorter holds.
fn is_among_spillable(consumer: &MemoryConsumer) -> bool {
    gives_back(consumer) || Part::of(consumer).is_some()
}

pub(crate) fn is_exchange(consumer: &MemoryConsumer) -> bool {
    consumer.name().starts_with(EXCHANGE)
}

/// A group that consumers charge.
#[derive(Debug)]
pub(crate) struct Account {
    /// The consumers' name without a partition, where operators have a group each.
    operator: String,
    /// The group's reclaimer asks these consumers to spill.
    is_asked: bool,
    pub(crate) group: Group,
    /// Pays for what the query's group allocates.
    cover: Option<RawCover>,
    pub(crate) demand: Option<Arc<Demand>>,
    // Dropped in this order: the group goes offline without a reclaimer.
    _reclaimer: Option<Registration>,
    _scope: Option<GroupScope>,
}

impl Account {
    pub(crate) fn plain(group: Group, cover: Option<&Arc<RawCover>>) -> Account {
        let cover = cover.and_then(|cover| cover.of_below(&group));
        Account { operator: String::new(), is_asked: false, group, cover, demand: None, _reclaimer: None, _scope: None }
    }

    /// Charges, and never waits.
    #[inline]
    pub(crate) fn try_charge_now(&self, bytes: u64) -> Result<(), ChargeError> {
        match &self.cover {
            None => self.group.try_charge_raw_now(Bytes(bytes)),
            Some(cover) => cover.try_charge_now(Bytes(bytes)),
        }
    }

    /// The same. Where it does not fit, others begin to give.
    #[inline]
    pub(crate) fn try_charge_or_start(&self, bytes: u64) -> Result<(), ChargeError> {
        match &self.cover {
            None => self.group.try_charge_raw_or_start(Bytes(bytes)),
            Some(cover) => cover.try_charge_or_start(Bytes(bytes)),
        }
    }

    #[inline]
    pub(crate) fn charge(&self, bytes: u64) {
        match &self.cover {
            None => self.group.charge_raw(Bytes(bytes)),
            Some(cover) => cover.charge(Bytes(bytes)),
        };
    }

    #[inline]
    pub(crate) fn uncharge(&self, bytes: u64) {
        match &self.cover {
            None => self.group.uncharge(Bytes(bytes)),
            Some(cover) => cover.uncharge(Bytes(bytes)),
        }
    }

    /// Finds what threads have freed and given up, where the charges pay for it.
    pub(crate) fn settle(&self) -> bool {
        if self.cover.is_some() {
            self.group.flush();
        }
        self.cover.is_some()
    }

    /// The sorts of the account, and which part of one the consumer is.
    #[inline]
    pub(crate) fn sorts(&self, consumer: &MemoryConsumer) -> Option<(&Sorts, Part)> {
        self.demand.as_ref().and_then(|demand| Part::of(consumer).map(|part| (&demand.sorts, part)))
    }

    /// A group below `parent`. Where another pool of the group has taken the name, it has none.
    fn below(
        parent: &Group,
        cover: Option<&Arc<RawCover>>,
        operator: &str,
        is_asked: bool,
    ) -> Result<Account, CreateError> {
        let taken = |error| match error {
            CreateError::Taken { .. } | CreateError::Name { .. } => parent.scope(GroupName::Unnamed, Limits::new()),
            other => Err(other),
        };
        let scope = parent.scope(operator, Limits::new()).or_else(taken)?;
        let demand = is_asked.then(|| Demand::new(scope.clone()));
        let reclaimer = demand.clone().map(|demand| scope.register_reclaimer(demand, Priority::NORMAL));
        let plain = Account::plain(scope.clone(), cover);
        let operator = operator.to_string();
        Ok(Account { operator, is_asked, demand, _reclaimer: reclaimer, _scope: Some(scope), ..plain })
    }
}

#[derive(Debug)]
pub(crate) enum Accounts {
    One(Account),
    BySpill { spillable: Account, unspillable: Account },
    ByOperator { parent: Scope, asks: bool, known: RwLock<Vec<Arc<Account>>> },
}

impl Accounts {
    pub(crate) fn new(scope: &Scope, config: &PoolConfig) -> Result<Accounts, CreateError> {
        let (group, cover) = (scope.group(), scope.cover());
        Ok(if config.by_operator {
            Accounts::ByOperator { parent: scope.clone(), asks: config.spill_on_demand, known: RwLock::default() }
        } else if config.spill_on_demand {
            let spillable = Account::below(group, cover, "spillable", true)?;
            Accounts::BySpill { spillable, unspillable: Account::below(group, cover, "unspillable", false)? }
        } else {
            Accounts::One(Account::plain(group.clone(), cover))
        })
    }

    /// Does `work` with the account of a consumer: the same one for each call with it.
    #[inline]
    pub(crate) fn with<R>(&self, consumer: &MemoryConsumer, work: impl FnOnce(&Account) -> R) -> R {
        match self {
            Accounts::One(account) => work(account),
            Accounts::BySpill { spillable, unspillable } => {
                work(if is_among_spillable(consumer) { spillable } else { unspillable })
            }
            Accounts::ByOperator { parent, asks, known } => work(&of_operator(consumer, parent, *asks, known)),
        }
    }
}

/// The account of the consumer's operator, which is made for the first consumer of it.
fn of_operator(
    consumer: &MemoryConsumer,
    parent: &Scope,
    asks: bool,
    known: &RwLock<Vec<Arc<Account>>>,
) -> Arc<Account> {
    let is_asked = asks && is_among_spillable(consumer);
    let operator = match Part::of(consumer) {
        Some(_) if asks => SORTER,
        _ => consumer.name().split('[').next().unwrap_or_default(),
    };
    let is_of = |account: &&Arc<Account>| account.operator == operator && account.is_asked == is_asked;
    if let Some(account) = known.read().unwrap_or_else(PoisonError::into_inner).iter().find(is_of) {
        return Arc::clone(account);
    }
    let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(account) = known.iter().find(is_of) {
        return Arc::clone(account);
    }
    // Without a group of its own, because there are too many or the parent is offline, it charges the parent.
    let (parent, cover) = (parent.group(), parent.cover());
    let account = Account::below(parent, cover, operator, is_asked).unwrap_or_else(|_| Account {
        operator: operator.to_string(),
        is_asked,
        ..Account::plain(parent.clone(), cover)
    });
    let account = Arc::new(account);
    known.push(Arc::clone(&account));
    account
}
