// `MemoryBudget` and `MemoryReservation` of uqa-core 0.6, on memcg: a budget is a group, a child budget a child group, and
// a reservation a charge. In the place of theirs in `src/memory.rs`; their collections and their tests stay.

/// What keeps a budget: its group goes offline with the last clone, and the runtime with the last budget of the tree.
#[derive(Debug)]
struct Kept {
    group: memcg::GroupScope,
    runtime: memcg::Runtime,
    parent: Option<MemoryBudget>,
    limit: usize,
}

/// Nested ten thousand deep in one of their tests: parents go in a loop.
impl Drop for Kept {
    fn drop(&mut self) {
        let mut parent = self.parent.take();
        while let Some(budget) = parent {
            parent = Arc::try_unwrap(budget.0).ok().and_then(|mut kept| kept.parent.take());
        }
    }
}

#[derive(Debug, Clone)]
pub struct MemoryBudget(Arc<Kept>);

/// The largest limit of theirs is none.
fn limits(limit: usize) -> memcg::Limits {
    if limit == usize::MAX {
        memcg::Limits::new()
    } else {
        memcg::Limits::new().max(limit)
    }
}

impl MemoryBudget {
    pub fn new(limit: usize) -> Self {
        let runtime = memcg::Runtime::builder().build().expect("no settings");
        MemoryBudget::below(&runtime.root(), runtime.clone(), None, limit)
    }

    pub fn child(&self, limit: usize) -> Self {
        MemoryBudget::below(&self.0.group, self.0.runtime.clone(), Some(self.clone()), limit)
    }

    fn below(
        above: &memcg::Group,
        runtime: memcg::Runtime,
        parent: Option<MemoryBudget>,
        limit: usize,
    ) -> Self {
        let group = above.scope(memcg::GroupName::Unnamed, limits(limit)).expect("room for a group");
        MemoryBudget(Arc::new(Kept { group, runtime, parent, limit }))
    }

    fn path(&self) -> impl Iterator<Item = &MemoryBudget> {
        std::iter::successors(Some(self), |budget| budget.0.parent.as_ref())
    }

    pub fn limit(&self) -> usize {
        self.0.limit
    }

    pub fn used(&self) -> usize {
        self.0.group.live() as usize
    }

    pub fn available(&self) -> usize {
        let left = |budget: &MemoryBudget| budget.limit().saturating_sub(budget.used());
        self.path().map(left).min().unwrap_or(0)
    }

    pub fn shares_allowance(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub fn peak(&self) -> usize {
        self.0.group.peak_live().max() as usize
    }

    pub fn reserve(&self, bytes: usize) -> Result<MemoryReservation, MemoryError> {
        let mut reservation = self.empty_reservation();
        reservation.grow(bytes)?;
        Ok(reservation)
    }

    pub fn empty_reservation(&self) -> MemoryReservation {
        let charge = self.0.group.force_charge(0);
        MemoryReservation { charge, budget: self.clone() }
    }
}

/// The bytes go back before the budget that keeps the group.
#[derive(Debug)]
pub struct MemoryReservation {
    charge: memcg::Charge,
    budget: MemoryBudget,
}

impl MemoryReservation {
    pub fn bytes(&self) -> usize {
        self.charge.bytes() as usize
    }

    pub fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    pub fn split(&mut self, bytes: usize) -> Self {
        let charge = self.charge.split(bytes).expect("insufficient reserved bytes");
        MemoryReservation { charge, budget: self.budget.clone() }
    }

    pub fn grow(&mut self, additional: usize) -> Result<(), MemoryError> {
        // Theirs adds to what the budget has, which may be more than this lease has.
        for budget in self.budget.path() {
            budget.used().checked_add(additional).ok_or(MemoryError::SizeOverflow)?;
        }
        self.charge.try_grow(additional).map_err(|refused| match refused.over_limit() {
            Some(over) => MemoryError::Limit {
                required: over.usage() as usize + additional,
                limit: over.max() as usize,
            },
            None => MemoryError::SizeOverflow,
        })
    }

    pub fn absorb(&mut self, other: Self) {
        let MemoryReservation { charge, budget } = other;
        assert!(self.budget.shares_allowance(&budget), "different memory allowances");
        self.charge.merge(charge).expect("one group");
    }
}

