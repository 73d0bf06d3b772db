
// What of the governor goes to memcg: a child module of theirs would not see its fields.
impl MemoryGovernor {
    pub fn try_reserve(
        &self,
        db: DatabaseId,
        tenant: TenantId,
        engine: EngineId,
        size: usize,
    ) -> Result<ReservationToken> {
        let databases = self.database_budgets.read().unwrap_or_else(|p| p.into_inner());
        let tenants = self.tenant_budgets.read().unwrap_or_else(|p| p.into_inner());
        let asked = crate::on_memcg::Asked { db, tenant, engine, size };
        crate::on_memcg::try_reserve(&self.global_counter, &databases, &tenants, &self.budgets, asked)
    }

    /// A guard has charged its engine and no level.
    pub fn release(&self, engine: EngineId, size: usize) {
        if let Some(budget) = self.budgets.get(&engine) {
            budget.release(size);
        }
    }
}
