//! Who has what a request holds.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use memcg::{Charge, Group};

use crate::account::Account;
use crate::protocol::Protocol;
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::upgrade::Upgrade;

/// All that a request holds: of its future, and after that of the body of its response.
pub(crate) enum Hold {
    /// The body of the request has ended, so no other part has it: nothing is allocated for it, and
    /// nothing locked.
    Alone(Alone),
    /// Of the request's body, too, of a large frame on its way, or of the handler.
    /// Its connection may go on with another protocol, until the answer.
    Shared(Arc<Account>, Option<Arc<Upgrade>>),
}

pub(crate) struct Alone {
    pub(crate) charge: Charge,
    /// Of the charge: for the response.
    pub(crate) response: u64,
    /// The most bytes to charge for a response before it is sent.
    pub(crate) window: u64,
    pub(crate) settings: Arc<Settings>,
    /// Below the charge, whose bytes are given back first.
    pub(crate) group: Group,
}

impl Hold {
    #[inline]
    pub(crate) fn group(&self) -> &Group {
        match self {
            Hold::Alone(alone) => &alone.group,
            Hold::Shared(account, _) => account.group(),
        }
    }

    /// Whose request it is.
    pub(crate) fn tenant(&self) -> Group {
        match self {
            Hold::Alone(alone) => alone.group.clone(),
            Hold::Shared(account, _) => account.tenant(),
        }
    }

    pub(crate) fn settings(&self) -> &Arc<Settings> {
        match self {
            Hold::Alone(alone) => &alone.settings,
            Hold::Shared(account, _) => account.settings(),
        }
    }

    /// The longest time that a frame of the response may wait for room.
    pub(crate) fn patience(&self) -> Duration {
        self.settings().patience
    }

    /// The most bytes to charge for a response before it is sent.
    pub(crate) fn window(&self) -> u64 {
        match self {
            Hold::Alone(alone) => alone.window,
            Hold::Shared(account, _) => account.window,
        }
    }

    /// The bytes that the charge holds now.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Hold::Alone(alone) => alone.charge.bytes(),
            Hold::Shared(account, _) => account.bytes(),
        }
    }

    /// The handler has answered with so many bytes. Returns what the response has. `Err`: the body
    /// of the request has failed, which is the answer.
    #[inline]
    pub(crate) fn has_answered(
        &mut self,
        status: StatusCode,
        response: u64,
    ) -> Result<u64, Box<Refusal>> {
        match self {
            Hold::Alone(alone) => Ok(alone.response),
            Hold::Shared(account, upgrade) => {
                // Taken in any case: after an answer of HTTP nothing waits for the connection any
                // more.
                let goes_on = upgrade.take().filter(|upgrade| upgrade.is_by(status));
                let has = account.has_answered(goes_on.is_some(), response)?;
                if let Some(upgrade) = goes_on {
                    upgrade.keeps(Arc::clone(account));
                }
                Ok(has)
            }
        }
    }

    /// Why the body of the request has failed.
    pub(crate) fn failed(&self) -> Option<Box<Refusal>> {
        match self {
            Hold::Alone(_) => None,
            Hold::Shared(account, _) => account.failed(),
        }
    }

    /// The protocol that says the failure of a body.
    pub(crate) fn protocol(&self) -> Protocol {
        match self {
            Hold::Alone(_) => Protocol::Http,
            Hold::Shared(account, _) => account.protocol,
        }
    }

    /// Bytes for a larger frame of the response.
    pub(crate) fn add(&mut self, charge: Charge) {
        match self {
            // Both are charges of one group, so nothing is left.
            Hold::Alone(alone) => drop(alone.charge.merge(charge)),
            Hold::Shared(account, _) => account.add_for_response(charge),
        }
    }

    /// The same with one more owner.
    pub(crate) fn share(self) -> (Hold, Arc<Account>) {
        let (account, upgrade) = match self {
            Hold::Alone(Alone {
                charge,
                response,
                window,
                settings,
                group,
            }) => (
                Account::of_response(charge, response, window, settings, group),
                None,
            ),
            Hold::Shared(account, upgrade) => (account, upgrade),
        };
        (Hold::Shared(Arc::clone(&account), upgrade), account)
    }
}
