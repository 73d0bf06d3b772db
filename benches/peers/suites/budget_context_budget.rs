    /// The group of this budget for a resource, made with those above it.
    fn group(&self, resource: &Resource) -> memcg::Group {
        let mut above: Option<(memcg::Group, memcg::Runtime)> = None;
        for node in self.lineage() {
            let mut state = node.state();
            let held = state.held.entry(resource.clone()).or_insert_with(|| {
                let limit = node.limits.get(resource);
                let max = limit.map_or(memcg::Limit::Unlimited, |&limit| memcg::Limit::bytes(limit));
                let (parent, runtime) = above.take().unwrap_or_else(|| {
                    let runtime = memcg::Runtime::builder().build().expect("no settings");
                    (runtime.root(), runtime)
                });
                let limits = memcg::Limits::new().max(max);
                let group = parent.scope(node.id.get(), limits).expect("room for a group");
                Held { group, consumed: 0, is_used: false, runtime }
            });
            above = Some((memcg::Group::clone(&held.group), held.runtime.clone()));
        }
        above.expect("a budget is in its own lineage").0
    }

    #[must_use]
    pub fn remaining(&self, resource: &Resource) -> Remaining {
        let left = |node: &Arc<Node>| {
            let limit = node.limits.get(resource)?;
            Some(limit.saturating_sub(node.held(resource)))
        };
        let all = self.lineage();
        all.iter().filter_map(left).min().map_or(Remaining::Unlimited, Remaining::Limited)
    }

    #[must_use]
    pub fn snapshot(&self) -> BudgetSnapshot {
        let node = &self.node;
        let limited = self.lineage();
        let limited = limited.iter().flat_map(|node| node.limits.keys().cloned());
        let mut resources: BTreeSet<Resource> = limited.collect();
        let used = |(resource, held): (&Resource, &Held)| held.is_used.then(|| resource.clone());
        resources.extend(node.state().held.iter().filter_map(used));
        let resources = resources.into_iter().map(|resource| {
            let consumed = node.state().held.get(&resource).map_or(0, |held| held.consumed);
            ResourceSnapshot {
                local_limit: node.limits.get(&resource).copied(),
                effective_remaining: self.remaining(&resource),
                consumed,
                reserved: node.held(&resource).saturating_sub(consumed),
                resource,
            }
        });
        BudgetSnapshot {
            id: node.id,
            name: node.name.clone(),
            resources: resources.collect(),
            deadline_remaining: node
                .deadline
                .map(|deadline| deadline.saturating_duration_since(Instant::now())),
            #[cfg(feature = "tokio")]
            cancelled: node.cancellation.is_cancelled(),
            #[cfg(not(feature = "tokio"))]
            cancelled: false,
        }
    }

    pub(crate) fn release_reserved(&self, resources: &BTreeMap<Resource, u64>) {
        for (resource, &amount) in resources {
            if amount > 0 {
                self.group(resource).raw().uncharge(memcg::Bytes(amount));
            }
        }
    }

    pub(crate) fn commit_reserved(
        &self,
        reserved: &BTreeMap<Resource, u64>,
        actual: &BTreeMap<Resource, u64>,
    ) {
        for (resource, &reserved) in reserved {
            let actual = actual.get(resource).copied().unwrap_or(0).min(reserved);
            self.consumed(resource, actual);
            let unused = memcg::Bytes(reserved - actual);
            self.group(resource).raw().uncharge(unused);
        }
    }

    fn consumed(&self, resource: &Resource, amount: u64) {
        for node in self.lineage() {
            if let Some(held) = node.state().held.get_mut(resource) {
                held.consumed += amount;
            }
        }
    }

    fn apply(
        &self,
        requests: &BTreeMap<Resource, u64>,
        kind: AccountingKind,
    ) -> Result<(), BudgetError> {
        let wanted = || requests.iter().filter(|(_, amount)| **amount > 0);
        for (number, (resource, &amount)) in wanted().enumerate() {
            if self.group(resource).raw().try_charge(memcg::Bytes(amount)).is_err() {
                for (resource, &amount) in wanted().take(number) {
                    self.group(resource).raw().uncharge(memcg::Bytes(amount));
                }
                return Err(self.refused(resource, amount));
            }
        }
        for (resource, &amount) in wanted() {
            for node in self.lineage() {
                if let Some(held) = node.state().held.get_mut(resource) {
                    held.is_used = true;
                }
            }
            if let AccountingKind::Consumed = kind {
                self.consumed(resource, amount);
            }
        }
        Ok(())
    }

    /// Theirs names the highest level without room, and ours the lowest: looked for as things are now.
    fn refused(&self, resource: &Resource, requested: u64) -> BudgetError {
        let resource = resource.clone();
        for node in self.lineage() {
            let held = node.held(&resource);
            let Some(next) = held.checked_add(requested) else {
                return BudgetError::Overflow { resource };
            };
            if let Some(&limit) = node.limits.get(&resource)
                && next > limit
            {
                let (scope, scope_name) = (node.id, node.name.clone());
                let remaining = limit.saturating_sub(held);
                return BudgetError::Exhausted { resource, requested, remaining, scope, scope_name };
            }
        }
        BudgetError::Overflow { resource }
    }

