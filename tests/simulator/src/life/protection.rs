//! How much of a group is protected against what lacks memory at the root: the kernel's
//! `effective_protection`, from the settings that the twin has.

use super::Life;
use crate::holds::{Holds, ensure_eq};
use memcg::Group;

/// `min` or `low` of a group.
type Setting = fn(&crate::twin::Group) -> u64;

impl Life {
    pub(super) fn protection_holds(&self, handle: &Group, group: usize) -> Holds {
        let Some(root) = self.handles[0].first().filter(|_| group > 0) else {
            return Ok(());
        };
        let (of, root) = (handle.memory(), root.memory());
        let settings: [(Setting, u64); 2] = [
            (|it| it.min, of.effective_min(&root)),
            (|it| it.low, of.effective_low(&root)),
        ];
        for (setting, found) in settings {
            // Of groups without a handle nobody knows the usage.
            if let Some(known) = self.protected(group, setting) {
                ensure_eq!(found, known, "protected of {handle:?}");
            }
        }
        Ok(())
    }

    fn used(&self, group: usize) -> Option<u64> {
        self.handles[group].first().map(Group::usage)
    }

    fn protected(&self, group: usize, setting: Setting) -> Option<u64> {
        let parent = self.twin.groups[group].parent?;
        let (usage, own) = (self.used(group)?, setting(&self.twin.groups[group]));
        if parent == 0 {
            return Some(if usage == 0 { 0 } else { own });
        }
        let above = self.protected(parent, setting)?;
        let claims = |child: usize| {
            let claim = setting(&self.twin.groups[child]);
            if claim == 0 {
                Some(0)
            } else {
                Some(self.used(child)?.min(claim))
            }
        };
        let online = |&child: &usize| self.twin.groups[child].online;
        let siblings = self.twin.children(parent).filter(online).map(claims);
        let siblings: u64 = siblings.collect::<Option<Vec<_>>>()?.iter().sum();
        let part = |of: u64, part: u64, whole: u64| {
            (u128::from(of) * u128::from(part) / u128::from(whole.max(1))) as u64
        };
        let claimed = usage.min(own);
        if siblings > above {
            return Some(part(claimed, above, siblings));
        }
        let of_parent = self.used(parent)?;
        if !self.setup.recursive || usage <= claimed || of_parent <= siblings {
            return Some(claimed);
        }
        // What nobody claims goes to those that use more than they claim.
        Some(claimed + part(above - siblings, usage - claimed, of_parent - siblings))
    }
}
