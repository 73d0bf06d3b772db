//! The comparison, in 80 columns.

use std::fmt::Write;

use crate::load::Outcome;
use crate::service::{AT_ONCE, TENANTS};
use crate::{Options, Policy};

fn name(policy: Policy) -> &'static str {
    match policy {
        Policy::None => "no limit",
        Policy::StoreLimits => "StoreLimits",
        Policy::Groups => "groups",
    }
}

pub(crate) fn table(options: &Options, outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    let contained = outcomes.iter().all(|outcome| outcome.contained);
    let place = if contained {
        "a control group"
    } else {
        "no control group, as if it had a limit"
    };
    let _ = writeln!(
        text,
        "A service in {place} of {}; each tenant sends {AT_ONCE} requests at a time.",
        options.limit
    );
    let _ = write!(text, "{:<32}", "served, refused, lost");
    for outcome in outcomes {
        let _ = write!(text, "{:>16}", name(outcome.policy));
    }
    text.push('\n');
    for (number, (tenant, percent)) in TENANTS.iter().enumerate() {
        let wants = if *tenant == "greedy" {
            "without end".to_string()
        } else {
            format!("{percent} % each")
        };
        let _ = write!(text, "{:<32}", format!("{tenant} ({wants})"));
        for outcome in outcomes {
            let answers = &outcome.tenants[number];
            let cell = format!("{}, {}, {}", answers.served, answers.refused, answers.lost);
            let _ = write!(text, "{cell:>16}");
        }
        text.push('\n');
    }
    let _ = write!(text, "{:<32}", "exit code of the service");
    for outcome in outcomes {
        let _ = write!(text, "{:>16}", outcome.exit);
    }
    text.push('\n');
    for outcome in outcomes {
        for answers in &outcome.tenants {
            if let Some(reason) = &answers.reason {
                let _ = writeln!(
                    text,
                    "{}, {}: {reason}",
                    name(outcome.policy),
                    answers.tenant
                );
            }
        }
    }
    text
}
