"""What people are shown: views, stories, explanations, notices, invoices. Pure, and no rule lives here."""
