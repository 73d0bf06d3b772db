/// What a budget holds of each resource: a group in a tree of that resource alone, which begins at the root budget. A
/// group that went offline leaves what is consumed there to the levels above, as a budget that is dropped does.
#[derive(Debug, Default)]
pub(crate) struct NodeState {
    held: BTreeMap<Resource, Held>,
}

#[derive(Debug)]
struct Held {
    group: memcg::GroupScope,
    consumed: u64,
    /// Something has been admitted here or below.
    is_used: bool,
    /// In each budget: the root budget may go before those below it.
    runtime: memcg::Runtime,
}

impl Node {
    fn state(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn held(&self, resource: &Resource) -> u64 {
        self.state().held.get(resource).map_or(0, |held| held.group.live())
    }
}

