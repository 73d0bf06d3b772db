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
        let online = |&child: &usize| self.twin.groups[child].online;
        let claims = Claims {
            parent: &|group| self.twin.groups[group].parent,
            children: &|parent| self.twin.children(parent).filter(online).collect(),
            used: &|group| self.used(group),
            setting: &|group| setting(&self.twin.groups[group]),
            recursive: self.setup.recursive,
        };
        claims.effective(group)
    }
}

/// What is claimed in a tree, whose root is 0.
pub(super) struct Claims<'a> {
    pub(super) parent: &'a dyn Fn(usize) -> Option<usize>,
    /// Those that are online.
    pub(super) children: &'a dyn Fn(usize) -> Vec<usize>,
    /// None: nobody knows.
    pub(super) used: &'a dyn Fn(usize) -> Option<u64>,
    pub(super) setting: &'a dyn Fn(usize) -> u64,
    pub(super) recursive: bool,
}

impl Claims<'_> {
    pub(super) fn effective(&self, of: usize) -> Option<u64> {
        let parent = (self.parent)(of)?;
        let (usage, own) = ((self.used)(of)?, (self.setting)(of));
        if parent == 0 {
            return Some(if usage == 0 { 0 } else { own });
        }
        let above = self.effective(parent)?;
        let claims = |child: usize| {
            let claim = (self.setting)(child);
            if claim == 0 {
                Some(0)
            } else {
                Some((self.used)(child)?.min(claim))
            }
        };
        let siblings = (self.children)(parent).into_iter().map(claims);
        let siblings: u64 = siblings.collect::<Option<Vec<_>>>()?.iter().sum();
        let part = |of: u64, part: u64, whole: u64| {
            (u128::from(of) * u128::from(part) / u128::from(whole.max(1))) as u64
        };
        let claimed = usage.min(own);
        if siblings > above {
            return Some(part(claimed, above, siblings));
        }
        let of_parent = (self.used)(parent)?;
        if !self.recursive || usage <= claimed || of_parent <= siblings {
            return Some(claimed);
        }
        // What nobody claims goes to those that use more than they claim.
        Some(claimed + part(above - siblings, usage - claimed, of_parent - siblings))
    }
}
