"""Loss plug-ins: functions of tensors that say what they need."""
