//! The tenant of a session, as a setting that goes from the client to the executors.

use std::any::Any;
use std::sync::Arc;

use ballista_core::ConfigProducer;
use ballista_core::extension::SessionConfigExt;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::common::{Result, config_err};
use datafusion::prelude::SessionConfig;

/// The setting `memcg.tenant` of a session: whose tasks its queries run as.
///
/// Ballista sends the settings of a session with each task. A process drops those that it does not
/// know, so the scheduler and the executors have the setting, too: see [`config_producer`].
///
/// A client may name any tenant. Where clients are not trusted, what stands between them and the
/// scheduler sets it.
///
/// ```
/// use ballista_core::extension::SessionConfigExt;
/// use datafusion::prelude::SessionConfig;
/// use memcg_ballista::TenantOptions;
///
/// let config = SessionConfig::new_with_ballista().with_option_extension(TenantOptions::of("gold"));
/// assert_eq!(config.options().extensions.get::<TenantOptions>().unwrap().tenant, "gold");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantOptions {
    /// The tenant's name: that of a group of the executors. Empty: none is set.
    pub tenant: String,
}

impl ConfigExtension for TenantOptions {
    const PREFIX: &'static str = "memcg";
}

/// By hand: Ballista sends the keys as they stand in `entries`, and those of `extensions_options!`
/// have no prefix.
impl ExtensionOptions for TenantOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        if key != "tenant" {
            return config_err!("no setting memcg.{key}: there is memcg.tenant");
        }
        self.tenant = value.to_string();
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        vec![ConfigEntry {
            key: "memcg.tenant".to_string(),
            value: Some(self.tenant.clone()),
            description: "Whose tasks the queries of the session run as: a group of the executors.",
        }]
    }
}

impl TenantOptions {
    /// The setting with a tenant's name.
    pub fn of(tenant: impl Into<String>) -> TenantOptions {
        TenantOptions {
            tenant: tenant.into(),
        }
    }
}

/// Returns what makes the sessions of a scheduler or an executor: Ballista's own defaults, and
/// [`TenantOptions`].
///
/// It is for `override_config_producer` of `SchedulerConfig` and of `ExecutorProcessConfig`.
///
/// ```
/// let config = memcg_ballista::config_producer()().set_str("memcg.tenant", "gold");
/// assert_eq!(config.options().extensions.get::<memcg_ballista::TenantOptions>().unwrap().tenant, "gold");
/// ```
pub fn config_producer() -> ConfigProducer {
    Arc::new(|| SessionConfig::new_with_ballista().with_option_extension(TenantOptions::default()))
}

/// The tenant that a session names, where it names one.
pub(crate) fn tenant_of(config: &SessionConfig) -> Option<String> {
    let options = config.options().extensions.get::<TenantOptions>()?;
    Some(options.tenant.clone()).filter(|tenant| !tenant.is_empty())
}

#[cfg(test)]
mod tests {
    use ballista_core::extension::SessionConfigHelperExt;

    use super::*;

    /// As a client's settings come to the scheduler, and the scheduler's to an executor.
    #[test]
    fn the_setting_is_sent() {
        let client =
            SessionConfig::new_with_ballista().with_option_extension(TenantOptions::of("gold"));
        let sent = client.to_key_value_pairs();
        assert_eq!(
            tenant_of(&config_producer()().update_from_key_value_pair(&sent)).as_deref(),
            Some("gold")
        );
        let dropped = SessionConfig::new_with_ballista().update_from_key_value_pair(&sent);
        assert_eq!(tenant_of(&dropped), None, "it does not know the setting");
    }

    #[test]
    fn another_setting() {
        let mut config = config_producer()();
        config.options_mut().set("memcg.tenant", "gold").unwrap();
        assert_eq!(tenant_of(&config).as_deref(), Some("gold"));
        let error = config
            .options_mut()
            .set("memcg.tenants", "gold")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no setting memcg.tenants: there is memcg.tenant"),
            "{error}"
        );
    }
}
