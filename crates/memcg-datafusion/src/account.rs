//! Which group a consumer charges: the pool's own, one for what can spill and one for what cannot, or one for each
//! kind of operator.

use std::sync::{Arc, PoisonError, RwLock};

use datafusion_execution::memory_pool::MemoryConsumer;
use memcg::{CreateError, Group, GroupName, GroupScope, Limits, Priority, Registration};

use crate::config::PoolConfig;
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
    pub(crate) demand: Option<Arc<Demand>>,
    // Dropped in this order: the group goes offline without a reclaimer.
    _reclaimer: Option<Registration>,
    _scope: Option<GroupScope>,
}

impl Account {
    pub(crate) fn plain(group: Group) -> Account {
        Account { operator: String::new(), is_asked: false, group, demand: None, _reclaimer: None, _scope: None }
    }

    /// The sorts of the account, and which part of one the consumer is.
    #[inline]
    pub(crate) fn sorts(&self, consumer: &MemoryConsumer) -> Option<(&Sorts, Part)> {
        self.demand.as_ref().and_then(|demand| Part::of(consumer).map(|part| (&demand.sorts, part)))
    }

    /// A group below `parent`. Where another pool of the group has taken the name, it has none.
    fn below(parent: &Group, operator: &str, is_asked: bool) -> Result<Account, CreateError> {
        let taken = |error| match error {
            CreateError::Taken { .. } | CreateError::Name { .. } => parent.scope(GroupName::Unnamed, Limits::new()),
            other => Err(other),
        };
        let scope = parent.scope(operator, Limits::new()).or_else(taken)?;
        let demand = is_asked.then(|| Demand::new(scope.clone()));
        let reclaimer = demand.clone().map(|demand| scope.register_reclaimer(demand, Priority::NORMAL));
        let (operator, group) = (operator.to_string(), scope.clone());
        Ok(Account { operator, is_asked, group, demand, _reclaimer: reclaimer, _scope: Some(scope) })
    }
}

#[derive(Debug)]
pub(crate) enum Accounts {
    One(Account),
    BySpill { spillable: Account, unspillable: Account },
    ByOperator { parent: Group, asks: bool, known: RwLock<Vec<Arc<Account>>> },
}

impl Accounts {
    pub(crate) fn new(group: &Group, config: &PoolConfig) -> Result<Accounts, CreateError> {
        Ok(if config.by_operator {
            Accounts::ByOperator { parent: group.clone(), asks: config.spill_on_demand, known: RwLock::default() }
        } else if config.spill_on_demand {
            let spillable = Account::below(group, "spillable", true)?;
            Accounts::BySpill { spillable, unspillable: Account::below(group, "unspillable", false)? }
        } else {
            Accounts::One(Account::plain(group.clone()))
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
    parent: &Group,
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
    let account = Account::below(parent, operator, is_asked).unwrap_or_else(|_| Account {
        operator: operator.to_string(),
        is_asked,
        ..Account::plain(parent.clone())
    });
    let account = Arc::new(account);
    known.push(Arc::clone(&account));
    account
}
